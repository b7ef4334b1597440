// The phases of a restore. First, where the program has TCP ports, ports (criu/tcp_ports.h), which
// waits for them. Then, where the image holds GPU data, beside each other
//   data-read                            image -> arenas, each block checked
//   gpu-load { load-room, data-load }    arenas -> GPU, as far as they have been read
//   program-back { image-verify, cpu-read, cpu-restore, data-bind, gpu-restore, gpu-unlock }
// and data-return, adopt. Without: image-verify, cpu-read, cpu-restore, the driver's phases, adopt;
// under the agent with data-bind and data-return too, for a gate can be closed over no data.
// Nothing of the program runs before all of the image has been read and checked. The tree hangs
// below a shim of its own from the start, which takes it down again when we fail or die before
// `adopt`: the image is untouched by all of it.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/caller.h"
#include "base/deadline.h"
#include "checkpoint/cpu_files.h"
#include "criu/client.h"
#include "criu/stdio.h"
#include "criu/tcp_ports.h"
#include "device/gpu_map.h"
#include "gpu_state/shared_resume.h"
#include "jobs/shim_client.h"
#include "jobs/store.h"
#include "operations/operations.h"
#include "plan/journal.h"
#include "store/image_reader.h"

namespace stasis::operations {

// One restore on its way, shared by its phases.
class RestoreRun {
 public:
  // `held`: the job that it will be, where there is one; see HoldJob.
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

  // A new job that no program came back under is none. One that is held is let go of.
  ~RestoreRun() {
    if (claim_ && !shim_) (void)claim_->Discard();
  }
  RestoreRun(const RestoreRun&) = delete;
  RestoreRun& operator=(const RestoreRun&) = delete;

  // The job's folder: that of the job that is held, or a new one.
  Status ClaimJob();
  // What GPU data the image has; touches nothing. To be called once, before the plan is made.
  Status ExpectData();
  // Refuses what another job does not stand beside it, and finds what it will take of our network.
  // To be called once, before the plan is made.
  Status LookAtNetwork();
  plan::Plan MakePlan();
  plan::Operation MakeOperation(plan::Operation base);
  const std::string& job() const { return job_; }
  pid_t root_pid() const { return root_.pid.value; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  plan::Phase Ports();
  plan::Phase ImageVerify();
  plan::Phase CpuRead();
  plan::Phase CpuRestore();
  plan::Phase DataRead();
  plan::Phase DataBind();
  plan::Phase Adopt();

  // A CRIU that waits for its request, below a shim of ours.
  Result<criu::Session> StartCriu(criu::InheritPlan& inherit, const criu::RestoreRequest& request,
                                  const Deadline& deadline);
  Status RunCriu(plan::PhaseScope& scope);
  Status ReadData(plan::PhaseScope& scope);
  gpu_state::Processes Recorded() const;
  // Of the program that runs again: its GPU state, and that all of it is there.
  Status CheckOnGpu() const;
  Status CheckNoneEnded() const;
  // CRIU reads other files than the image's: a user's have to be made fit for him.
  bool makes_cpu_files() const { return checkpoint::NeedsCpuFiles(manifest()) || !caller_.root(); }
  bool has_data() const { return !manifest().ranges.empty(); }
  // A program that was suspended with its context kept stands at its gate, also when all of its
  // memory was too small for the agent to carry.
  bool may_have_gates() const;
  bool has_terminal() const {
    const auto& all = manifest().externals;
    return std::any_of(all.begin(), all.end(), [](const auto& e) { return e.kind == "tty"; });
  }
  Result<criu::InheritPlan> PlanOutput() const;
  Status TakeDown();
  Status RemoveWork();
  const store::Manifest& manifest() const { return reader_.manifest(); }
  uint64_t driver_bytes() const;

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
  checkpoint::CpuFiles cpu_files_;  // no folder: the image's own
  std::optional<jobs::RestoreShim> shim_;
  process::ProcessId root_;
  gpu_state::Processes processes_;
  std::vector<gpu_state::SharedResume::Returned> returned_;  // the same
  std::vector<criu::TcpPort> ports_;                         // that CRIU will bind
  std::vector<std::string> notes_;
  gpu_state::SharedResume shared_;
};

// What was chosen at the dump holds, unless the user says otherwise now.
criu::Options WithRecorded(criu::Options options, const store::Manifest& manifest);

// What the program itself will take of host memory. Room for GPU data is asked for where it is
// taken, by data-read: memory that is kept for it may be there already.
uint64_t CpuBytes(const store::Manifest& manifest);

}  // namespace stasis::operations
