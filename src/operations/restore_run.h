// The phases of a restore. If the program has TCP ports, `ports` (criu/tcp_ports.h) waits for them
// first. If the image has GPU data, these run in parallel:
//   data-read                            image -> arenas, checks each block
//   gpu-load { load-room, data-load }    arenas -> GPU, each part as soon as it has been read
//   program-back { image-verify, cpu-read, cpu-restore { cpu-fill, gpu-restore }, data-bind,
//                  gpu-unlock }
// If movers can hash memory with the key of the image, data-read only opens the packs, and
// data-load copies from them to the GPU and checks each block there.
//
// Then data-return and adopt follow. Without GPU data: image-verify, cpu-read, cpu-restore, the
// driver's phases, adopt; with an agent also data-bind and data-return, because a gate can be
// closed without data.
//
// gpu-restore runs when all threads of the program are stopped at the end of CRIU's restore. Only
// the driver's threads run until the data is loaded and checked (OverlapsDriver()).
//
// cpu-fill writes large parts of the CPU memory into the processes that CRIU has restored, before
// they run (checkpoint/direct_pages.h).
//
// No process of the program runs before the whole image has been read and checked. CRIU starts the
// tree below a new shim, which kills the tree if this process fails or dies before `adopt`. The
// image is never changed.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/block_hash.h"
#include "base/caller.h"
#include "base/deadline.h"
#include "checkpoint/cpu_files.h"
#include "checks/collisions.h"
#include "criu/client.h"
#include "criu/network_lock.h"
#include "criu/stdio.h"
#include "criu/tcp_ports.h"
#include "device/gpu_map.h"
#include "gpu_state/shared_resume.h"
#include "jobs/store.h"
#include "operations/restore.h"
#include "operations/restore_host.h"
#include "plan/journal.h"
#include "store/image_reader.h"
#include "store/unit_names.h"

namespace stasis::operations {

// The state of one restore, shared by its phases.
class RestoreRun {
 public:
  // `held` is the existing job to restore, if any; see HoldJob.
  RestoreRun(Session& session, const store::ImageReader& reader, const RestoreOptions& options,
             std::optional<jobs::Claim> held, device::GpuMap map, std::string criu_path,
             bool ignore_memory)
      : session_(session),
        reader_(reader),
        options_(options),
        map_(std::move(map)),
        criu_path_(std::move(criu_path)),
        ignore_memory_(ignore_memory),
        store_(session.services.paths.jobs()),
        claim_(std::move(held)),
        shared_(session.services, map_) {}

  // Deletes a new job that got no program, and releases an existing job.
  ~RestoreRun() {
    if (claim_ && !host_) (void)claim_->Discard();
  }
  RestoreRun(const RestoreRun&) = delete;
  RestoreRun& operator=(const RestoreRun&) = delete;

  // Bounds the host memory for GPU data (AwayOptions::arena_limit_bytes). Call it before MakePlan.
  void LimitMemory(uint64_t bytes) { shared_.LimitMemory(bytes); }
  // Uses the held job, or creates a new one.
  Status ClaimJob();
  // Lists the image's GPU data, which it reads from the manifest. Call it once, before MakePlan.
  Status AddExpectedData();
  // Refuses a restore that would endanger another NCCL job, or whose program would collide with
  // another one (checks/collisions.h), and finds the TCP ports that the program needs. Claims the
  // program's names, so that no other restore takes them, unless `dry_run`. Call it once, before
  // MakePlan.
  Status CheckNeighbours(bool dry_run);
  plan::Plan MakePlan();
  plan::Operation MakeOperation(plan::Operation base);
  const std::string& job() const { return job_; }
  uint64_t cold_bytes() const { return shared_.cold_bytes(); }
  pid_t root_pid() const { return root_.pid.value; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  static constexpr std::chrono::seconds kShimTimeout{20};
  static constexpr const char* kCpuRestore = "cpu-restore";

  std::string WhyNotDirect() const;
  plan::Phase Ports();
  plan::Phase ImageVerify();
  plan::Phase CpuRead();
  plan::Phase CpuRestore();
  plan::Phase CpuFill();
  plan::Phase DataRead();
  plan::Phase DataBind();
  plan::Phase Adopt();

  // Starts a shim and a CRIU below it.
  Result<std::unique_ptr<criu::CriuSession>> StartCriu(const criu::InheritPlan& inherit,
                                                       const criu::RestoreRequest& request,
                                                       const Deadline& deadline);
  // Called while the restored tree is stopped.
  Status CheckStoppedTree(process::HostPid root) const;
  Status CheckIsBelowShim(process::Stat at) const;
  Status NoteRoot(process::HostPid root);
  // Adapts the device files of a restored container to this machine and its GPUs.
  Status RenewDeviceNodes() const;
  Status FindProcesses();
  Result<criu::RestoreLock> LockNetwork(const criu::RestoreRequest& request);
  Status RunCriu(plan::PhaseScope& scope);
  // Called by CRIU when it has restored the tree, and, with the plugin of criu/restore_plugin.h,
  // again when all threads are stopped at the end of their restore.
  Status OnRestored(plan::PhaseScope& scope, const criu::Notification& notification);
  Status OnStopped(plan::PhaseScope& scope, const criu::Notification& notification);
  // Returns the threads that the driver's restore needs, one of each process. The result is empty
  // if a process has none of its own.
  std::vector<pid_t> DriverThreads() const;
  // Returns true if the driver may restore while the GPU data is still loaded. Without CRIU's
  // plugin, or without threads of the driver, it restores when the program runs.
  bool OverlapsDriver();
  // Returns true if this process may write CPU memory to the restored processes (cpu-fill).
  bool MayFillCpuMemory() const;
  // Returns the secret of the image's hashes, or the reason why data-load cannot use them.
  Result<BlockSecret> SecretOfHashes() const;
  Status ReadData(plan::PhaseScope& scope);
  // Opens the packs for data-load. Returns false if the movers need arenas.
  Result<bool> OpenSources(plan::PhaseScope& scope);
  // Waits until all GPU data has been read and checked.
  Status AwaitData(plan::PhaseScope& scope) const;
  // Check the restored program.
  Status CheckOnGpu() const;
  // Returns true if the program has ended with exit code 0.
  bool HasFinished() const;
  Status CheckNoneEnded() const;
  Status CheckNames(const criu::RestoredNames& names, bool dry_run);
  // Returns true if CRIU reads copies of the image's files: pages must be unpacked, and the files
  // of a user who is not root must be adapted.
  bool makes_cpu_files() const { return checkpoint::NeedsCpuFiles(manifest()) || !caller_.root(); }
  bool has_data() const { return !manifest().ranges.empty(); }
  // Returns true if gates of the program may be closed. A program that was suspended with its
  // context kept waits at its gate, even if none of its memory was large enough for the agent to
  // carry.
  bool may_have_gates() const;
  // Returns true for a program of HIP, whose driver restores nothing.
  bool is_hip() const;
  bool has_terminal() const {
    const auto& all = manifest().externals;
    return std::any_of(all.begin(), all.end(), [](const auto& e) { return e.kind == "tty"; });
  }
  Result<criu::InheritPlan> PlanOutput() const;
  Status EndRestored();
  Status CommitToShim();
  Status RemoveWork();
  const store::Manifest& manifest() const { return reader_.manifest(); }

  Session& session_;
  const store::ImageReader& reader_;
  const RestoreOptions& options_;
  const device::GpuMap map_;
  const std::string criu_path_;
  const bool ignore_memory_;
  const Caller caller_ = Caller::Self();
  const jobs::Store store_;
  std::string job_;
  std::string log_;
  std::optional<jobs::Claim> claim_;
  std::string work_dir_;
  process::ProcessId owner_;
  checkpoint::CpuFiles cpu_files_;  // if its folder is empty, CRIU reads the image's own files
  bool fills_cpu_memory_ = false;
  bool overlaps_driver_ = false;  // cpu-restore runs gpu-restore
  bool driver_has_restored_ = false;
  process::HostPid stopped_root_;  // during cpu-fill
  std::unique_ptr<RestoreHost> host_;
  process::ProcessId root_;
  gpu_state::Processes processes_;
  std::vector<gpu_state::SharedResume::Returned> returned_;  // the same processes
  std::vector<criu::InetPort> ports_;                        // ports that CRIU will bind
  std::optional<checks::NameClaims> names_taken_;            // held until the restore has ended
  std::vector<std::string> notes_;
  std::string why_arenas_;  // why data-load does not read an image in a folder; or empty
  std::optional<store::UnitNames> names_;  // if data-load may check by hashes
  gpu_state::SharedResume shared_;
};

}  // namespace stasis::operations
