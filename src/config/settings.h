// What a user may set once instead of with every command. The table in table.cc says of each how it
// is called, what it may be and what it is by default; load.h where its value comes from.
//
// Read once, by the program that the user started, and handed down from there. The agent and the
// shim, which are inside other people's processes or their parents, never read it: `run` gives them
// what they need.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace stasis::config {

struct Settings {
  Settings();  // all defaults

  // Folders: absolute, or empty for the place that is chosen without them.
  std::string state_dir;  // jobs, images, journals, locks: see OpenPaths
  std::string image_dir;  // images
  std::string arena_dir;  // GPU data in host memory; a tmpfs
  std::string spill_dir;  // of a suspend without --spill; empty: host memory

  std::string criu;          // its program; empty: looked for
  std::string cuda_library;  // libcuda.so.1; empty: the loader's

  std::string compress;  // of a dump without --compress, in its words
  uint64_t pack_bytes;

  // What one user may have at a time; 0: no limit.
  uint64_t most_jobs;  // ended ones too
  uint64_t most_arena_bytes;
  uint64_t most_image_bytes;

  double mover_idle_s;     // 0: movers end with their command
  double phase_timeout_s;  // of an operation without --timeout; 0: each phase has its own
  double settle_timeout_s;
  double undo_timeout_s;

  // The daemon. Its socket: empty for the place that is chosen without it.
  std::string daemon_socket;
  std::string daemon_listen;  // "HOST:PORT", for TCP with certificates; empty: none
  std::string daemon_tls_cert, daemon_tls_key, daemon_tls_client_ca;  // PEM files

  std::string daemon_log_level;  // "debug", "info", "warn", "error"
  std::string daemon_log_file;   // empty: stderr
  uint64_t daemon_log_bytes;
  std::string metrics_listen;  // "HOST:PORT"; empty: none

  bool keep_gpu_files;  // of children that were forked
  uint64_t log_bytes;   // that are kept of a job's own log
  std::string toggle;   // "driver" or "suspend": what the drop-in's --toggle is
};

inline std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace stasis::config
