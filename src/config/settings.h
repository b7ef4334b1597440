// The settings. table.cc gives the name, range and default of each; load.h gives the sources of
// values. The program that the user starts reads the settings once and passes them to its helpers.
// The agent and the shim never read settings, because they run inside the user's program or as its
// parent; `run` passes them the values that they need.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace stasis::config {

struct Settings {
  Settings();  // the defaults of the table

  // Directories: absolute, or empty for a computed default.
  std::string state_dir;  // jobs, images, journals, locks: see OpenPaths
  std::string run_dir;    // journals and locks, with %u for the user's id
  std::string image_dir;  // images
  std::string arena_dir;  // GPU data in host memory; on a tmpfs
  std::string spill_dir;  // default of suspend --spill; host memory if empty

  std::string criu;          // path of the program; searched for if empty
  std::string cuda_library;  // path of libcuda.so.1; found by the loader if empty

  std::string compress;   // default of dump --compress, in the same syntax
  std::string criu_data;  // "embedded" or "reference": where CRIU's plugin saves GPU data
  uint64_t pack_bytes{};
  std::string restore_data;  // "direct" or "arena": how a restore loads GPU data

  // Sources of the master key of encrypted repositories; at most one is set.
  std::string key_file;
  std::string key_command;  // for /bin/sh

  std::string default_repository;  // name or location; empty for none

  // For migrations: the ssh command and the remote command. The ssh command is a line for /bin/sh;
  // the host and the remote command are appended to it.
  std::string migrate_ssh;
  std::string migrate_remote_command;

  // Limits per user; 0 means no limit.
  uint64_t most_jobs{};  // includes ended jobs
  uint64_t most_arena_bytes{};
  uint64_t most_image_bytes{};

  std::string arena_reserve;       // "off" or "auto": memory is made ready before a suspend
  uint64_t arena_reserve_bytes{};  // limit for all users together; 0: no limit of its own

  double helper_idle_s{};    // 0: helpers exit with their command
  double phase_timeout_s{};  // default of --timeout; 0: each phase has its own limit
  double settle_timeout_s{};
  double undo_timeout_s{};

  // The daemon. An empty socket means a computed default.
  std::string daemon_socket;
  std::string daemon_listen;  // "HOST:PORT" for TCP with certificates; empty for none
  std::string daemon_tls_cert, daemon_tls_key, daemon_tls_client_ca;  // PEM files

  std::string daemon_log_level;  // "debug", "info", "warn", "error"
  std::string daemon_log_file;   // empty: stderr
  uint64_t daemon_log_bytes{};
  std::string metrics_listen;  // "HOST:PORT"; empty for none

  // Programs that share GPUs.
  std::string share_default;  // "off", "interactive" or "batch": default of run --share
  double share_max_wait_s{};
  uint64_t share_host_bytes{};   // 0: most of the free memory
  uint64_t share_spare_bytes{};  // of each GPU

  bool hide_gpus{};       // the agent, not the driver, hides GPUs from jobs
  bool keep_gpu_files{};  // forked children keep inherited GPU files open
  uint64_t log_bytes{};   // size limit of a job's own log
  std::string toggle;     // "driver" or "suspend": the effect of cuda-checkpoint --toggle
};

inline std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace stasis::config
