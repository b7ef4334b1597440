#include "api/container_operations.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <ctime>

#include "api/gpu_usage.h"
#include "api/put_back_agent.h"
#include "api/target.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/file.h"
#include "base/operation_id.h"
#include "containers/checkpoint.h"
#include "health/findings.h"
#include "process/search.h"

namespace stasis::api {
namespace {

using containers::Runtime;

constexpr std::chrono::hours kRuntimeLimit{1};
constexpr double kMaxTimeoutS = 86400;
constexpr char kPhase[] = "runtime";
constexpr size_t kMaxMountsBytes = 16u << 20;

std::string ImageFolder(const Paths& paths) { return paths.data + "/containers"; }

// Refuses options that only work for Stasis's own images.
template <class Request>
Status RefuseOwnOptions(const Request& request) {
  const v1::CriuOptions& criu = request.criu();
  std::string option;
  if (criu.tcp() == "close") option = "--tcp=close";
  if (criu.link_remap()) option = "--link-remap";
  if (criu.external_size() > 0) option = "--external";
  if (criu.others_size() > 0) option = "--criu-opt";
  if (request.arena_limit_bytes() > 0) {
    return FailUsage("--arena-limit does not apply to containers");
  }
  if (option.empty()) return {};
  return FailUsage(option + " cannot be passed to the runtime of a container",
                   "set CRIU's options for containers in /etc/criu/runc.conf");
}

containers::CriuChoices ChoicesOf(const v1::CriuOptions& criu) {
  return {criu.tcp() == "keep", criu.file_locks()};
}

Result<Deadline> DeadlineOf(const v1::OperationOptions& options) {
  const double seconds = options.timeout_s();
  if (std::isnan(seconds) || seconds < 0 || seconds > kMaxTimeoutS) {
    return FailUsage(fmt::format("the timeout is {} s, and must be from 0.001 to {:.0f} s", seconds,
                                 kMaxTimeoutS));
  }
  return seconds > 0 ? Deadline::In(config::Milliseconds(seconds)) : Deadline::In(kRuntimeLimit);
}

std::string TimedName(const std::string& name) {
  return fmt::format("{}-{:%Y%m%dT%H%M%S}", name, fmt::gmtime(std::time(nullptr)));
}

// Checks a name that becomes a part of a path.
Status CheckImageName(const std::string& name) {
  if (!name.empty() && name.front() != '.' && name.front() != '-' && name.find('/') == name.npos &&
      name.size() <= 200) {
    return {};
  }
  return FailUsage("'" + Utf8(name.substr(0, 64)) + "' cannot be the name of an image",
                   "a name has 1 to 200 characters, no '/', and begins with neither '.' nor '-'; "
                   "-d selects a folder");
}

// Sets the path of the image. Without a store and a name podman keeps the image in its own storage.
Status ChooseImage(const Call& call, const v1::DumpRequest& request,
                   containers::CheckpointRequest& checkpoint) {
  const containers::Container& container = checkpoint.container;
  STASIS_TRY(CheckAbsolute("the folder", request.store()));
  const std::string name =
      request.name().empty() ? TimedName(container.reference.name) : request.name();
  STASIS_TRY(CheckImageName(name));
  const std::string folder = request.store().empty() ? ImageFolder(call.paths) : request.store();
  switch (container.reference.runtime) {
    case Runtime::kPodman:
      if (request.store().empty() && request.name().empty()) return {};
      checkpoint.image = folder + "/" + name + ".tar";
      break;
    case Runtime::kRunc:
      checkpoint.image = folder + "/" + name;
      break;
    case Runtime::kContainerd:
      if (!request.store().empty()) {
        return FailUsage("containerd keeps a checkpoint in its own store, not in a folder",
                         "use --name to name the checkpoint in that store, and `ctr image export` "
                         "to write it to a file");
      }
      checkpoint.image = name;
      return {};
  }
  if (!request.options().dry_run()) STASIS_TRY(MakeDirs(folder));
  if (PathExists(checkpoint.image)) {
    return Fail(Code::kAlreadyExists, checkpoint.image + " exists already",
                "choose another --name; nothing is overwritten");
  }
  return {};
}

Status ChooseCompression(const v1::DumpRequest& request,
                         containers::CheckpointRequest& checkpoint) {
  checkpoint.compress = request.compress().empty() ? "none" : request.compress();
  const bool archive =
      checkpoint.container.reference.runtime == Runtime::kPodman && !checkpoint.image.empty();
  if (checkpoint.compress == "none" || (archive && checkpoint.compress == "zstd")) return {};
  return FailUsage(
      "--compress " + Utf8(checkpoint.compress.substr(0, 16)) +
          " does not apply to this checkpoint",
      "a podman archive may be compressed with `zstd`; other checkpoints are not compressed");
}

// Refuses a checkpoint in which CRIU would fail or processes would be lost. Adds notes to `result`.
Status CheckContainer(const containers::CheckpointRequest& checkpoint,
                      v1::OperationResult& result) {
  STASIS_ASSIGN(const auto tree, process::ReadTree({checkpoint.container.pid}));
  STASIS_ASSIGN(const auto paths, containers::UsualSetupPaths());
  if (UsesGpuDriver(tree) && !containers::IsSetUp(paths)) {
    return Fail(Code::kUnimplemented,
                "it uses a GPU, and CRIU's configuration does not name Stasis's plugin: the "
                "runtime's CRIU would fail",
                "run `sudo stasis container setup` once on each machine");
  }
  STASIS_TRY(CheckHookMounts(tree.root().id.pid));
  STASIS_ASSIGN(const auto beside, ProcessesBeside(tree));
  if (beside.empty()) return {};
  const std::string what =
      fmt::format("{}{} was started in the container by `exec` and would not be in the checkpoint",
                  process::Describe(beside.front()),
                  beside.size() == 1 ? "" : fmt::format(" (and {} more)", beside.size() - 1));
  if (!checkpoint.leave_running) {
    return Fail(Code::kFailedPrecondition, what + ", and end with the container",
                "end it first, or add --leave-running");
  }
  result.add_notes(Utf8(what));
  return {};
}

void EmitBegun(const Call& call) {
  if (!call.emit) return;
  v1::OperationEvent event;
  event.mutable_phase_begun()->set_name(kPhase);
  call.emit(event);
}

// Runs `work` as the only phase of the operation.
Status RunPhase(const Call& call, v1::OperationResult& result,
                const std::function<Status()>& work) {
  EmitBegun(call);
  const Stopwatch watch;
  STASIS_TRY(work());
  v1::PhaseReport& phase = *result.add_phases();
  phase.set_name(kPhase);
  phase.set_seconds(watch.Seconds());
  result.set_total_s(watch.Seconds());
  if (call.emit) {
    v1::OperationEvent event;
    *event.mutable_phase_ended() = phase;
    call.emit(event);
  }
  return {};
}

v1::OperationEvent EventOf(v1::OperationResult result) {
  v1::OperationEvent event;
  *event.mutable_result() = std::move(result);
  return event;
}

v1::OperationResult ResultOf(const char* verb, const std::string& target) {
  v1::OperationResult result;
  result.set_verb(verb);
  result.set_target(Utf8(target));
  result.set_operation(OperationId());
  return result;
}

void Plan(const std::vector<std::string>& command, v1::OperationResult& result) {
  result.add_planned_phases(Utf8(fmt::format("{}", fmt::join(command, " "))));
}

// Translates the request.
Result<containers::RestoreRequest> RestoreOf(const Call& call, const v1::RestoreRequest& request) {
  containers::RestoreRequest restore;
  const std::string& source = request.source();
  STASIS_ASSIGN(restore.places, PlacesOf(request.places()));
  restore.criu = ChoicesOf(request.criu());
  restore.new_name = request.job();
  restore.output = request.log();
  restore.gpu_map = request.gpu_map();
  if (containers::IsReference(source)) {
    STASIS_ASSIGN(restore.reference, containers::ParseReference(source));
    if (restore.reference.runtime == Runtime::kRunc) {
      STASIS_ASSIGN(restore.runc_image,
                    containers::LatestRuncImage(ImageFolder(call.paths), restore.reference.name));
    }
  } else if (struct stat st; ::stat(source.c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
    restore.reference.runtime = Runtime::kPodman;
    restore.archive = source;
  } else {
    restore.reference.runtime = Runtime::kRunc;
    restore.runc_image = source;
  }
  if (restore.reference.runtime == Runtime::kRunc) {
    STASIS_ASSIGN(const auto image, containers::ReadRuncImage(restore.runc_image));
    restore.reference.name = image.id;
    if (restore.places.runc_root.empty()) restore.places.runc_root = image.root;
  } else if (!restore.output.empty()) {
    return FailUsage("--log does not apply to this container: the runtime keeps its output");
  }
  if (!restore.new_name.empty()) {
    // Refuses a name that the runtime would read as an option.
    STASIS_TRY(containers::ParseReference(fmt::format(
        "{}:{}", containers::RuntimeName(restore.reference.runtime), restore.new_name)));
  }
  return restore;
}

Status RefuseOptionsOfRestore(const v1::RestoreRequest& request) {
  STASIS_TRY(RefuseOwnOptions(request));
  STASIS_TRY(CheckAbsolute("the log", request.log()));
  STASIS_TRY(CheckAbsolute("the pid file", request.pid_file()));
  if (!request.gpus().empty()) {
    return FailUsage(
        "--gpus and CUDA_VISIBLE_DEVICES do not apply to a container: its runtime grants GPUs");
  }
  if (request.share_files()) {
    return FailUsage("--share-files does not apply to a container, which has its own files");
  }
  if (!request.new_pidns()) return {};
  return FailUsage("--new-pidns does not apply to a container: the runtime creates its namespaces");
}

}  // namespace

bool IsContainerSource(const std::string& source) {
  if (containers::IsReference(source)) return true;
  if (!source.starts_with('/')) return false;
  struct stat st;
  if (::stat(source.c_str(), &st) != 0) return false;
  return S_ISREG(st.st_mode) || PathExists(source + "/" + containers::kRuncImageFile);
}

Result<std::vector<process::Stat>> ProcessesBeside(const process::ProcessTree& tree) {
  STASIS_ASSIGN(const uint64_t inside, process::ReadNamespace(tree.root().id.pid, "pid"));
  STASIS_ASSIGN(const uint64_t ours, process::ReadNamespace({::getpid()}, "pid"));
  std::vector<process::Stat> beside;
  if (inside == ours) return beside;
  STASIS_ASSIGN(const auto all, process::ListProcesses());
  for (const process::HostPid pid : all) {
    auto its = process::ReadNamespace(pid, "pid");
    if (!its || *its != inside || tree.Contains(pid)) continue;
    auto stat = process::ReadStat(pid);
    // Skips children that processes of the tree have started since the tree was read.
    if (!stat || !process::IsAlive(*stat) || tree.Contains(stat->parent)) continue;
    beside.push_back(*std::move(stat));
  }
  return beside;
}

Status CheckHookMounts(process::HostPid init) {
  STASIS_ASSIGN(const std::string mountinfo,
                ReadFile(fmt::format("/proc/{}/mountinfo", init.value), kMaxMountsBytes));
  if (!containers::HasNvidiaHookMounts(mountinfo)) return {};
  return Fail(Code::kUnimplemented,
              "NVIDIA's legacy hook has mounted the driver's files into the container, and its "
              "runtime cannot restore these mounts",
              health::KindOf("container-hook").fix);
}

Result<v1::OperationEvent> DumpContainer(Call& call, const v1::DumpRequest& request) {
  STASIS_TRY(RefuseOwnOptions(request));
  containers::CheckpointRequest checkpoint;
  STASIS_ASSIGN(const auto reference, containers::ParseReference(request.target()));
  STASIS_ASSIGN(checkpoint.places, PlacesOf(request.places()));
  STASIS_ASSIGN(const Deadline deadline, DeadlineOf(request.options()));
  checkpoint.criu = ChoicesOf(request.criu());
  checkpoint.leave_running = request.leave_running();
  const auto runner = containers::MakeCommandRunner();
  STASIS_ASSIGN(checkpoint.container, containers::FindRunning(*runner, reference, checkpoint.places,
                                                              Deadline::In(kRuntimeTimeout)));
  STASIS_TRY(ChooseImage(call, request, checkpoint));
  STASIS_TRY(ChooseCompression(request, checkpoint));
  STASIS_ASSIGN(const auto command, containers::CheckpointCommand(checkpoint));

  v1::OperationResult result = ResultOf("dump", request.target());
  STASIS_TRY(CheckContainer(checkpoint, result));
  if (request.options().dry_run()) {
    Plan(command, result);
    return EventOf(std::move(result));
  }
  STASIS_TRY(RunPhase(call, result,
                      [&] { return containers::Checkpoint(*runner, checkpoint, deadline); }));
  if (checkpoint.leave_running) result.set_pid(checkpoint.container.pid);
  containers::Reference image = reference;
  image.name = checkpoint.image;
  result.set_image(
      Utf8(reference.runtime == Runtime::kContainerd ? image.ToString() : checkpoint.image));
  return EventOf(std::move(result));
}

Result<v1::OperationEvent> RestoreContainer(Call& call, const v1::RestoreRequest& request) {
  STASIS_TRY(RefuseOptionsOfRestore(request));
  STASIS_ASSIGN(const Deadline deadline, DeadlineOf(request.options()));
  STASIS_ASSIGN(const auto restore, RestoreOf(call, request));
  STASIS_ASSIGN(auto command, containers::RestoreCommand(restore));
  v1::OperationResult result = ResultOf("restore", request.source());
  if (request.options().dry_run()) {
    const auto variables = containers::GpuMapVariables(restore);
    command.insert(command.begin(), variables.begin(), variables.end());
    Plan(command, result);
    return EventOf(std::move(result));
  }
  const auto runner = containers::MakeCommandRunner();
  STASIS_TRY(RunPhase(call, result, [&]() -> Status {
    STASIS_TRY(PutBackAgent(call.paths, *runner, restore, request.trust_image(), deadline));
    STASIS_ASSIGN(const auto restored, containers::Restore(*runner, restore, deadline));
    result.set_pid(restored.pid);
    if (restored.reference.ToString() != request.source()) {
      result.add_notes(Utf8("the container is " + restored.reference.ToString()));
    }
    return {};
  }));
  if (!request.pid_file().empty()) {
    if (Status written = WritePidFile(request.pid_file(), static_cast<pid_t>(result.pid()));
        !written) {
      result.add_notes(Utf8("it is running, but the file of --pid-file was not written: " +
                            written.error().ToString()));
    }
  }
  return EventOf(std::move(result));
}

}  // namespace stasis::api
