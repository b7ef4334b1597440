// cuda-checkpoint: a replacement for NVIDIA's tool with the same options, output and exit codes,
// built from the steps of `stasis gpu` (operations/by_hand.h). docs/cuda-checkpoint.md describes
// each option, and differences for processes that Stasis has suspended or that run under the agent.
#include <fmt/format.h>
#include <getopt.h>
#include <signal.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "api/methods.h"
#include "base/rights.h"
#include "cli/interrupts.h"
#include "cli/verb.h"
#include "gpu_state/services.h"
#include "operations/by_hand.h"
#include "operations/operations.h"

namespace stasis::cli {
namespace {

using device::DeviceControl;
using device::ProcessState;
using operations::ByHand;
using process::HostPid;

// CRIU's plugin searches the first two KiB for "--action".
constexpr const char* kHelp =
    R"(cuda-checkpoint of Stasis )" STASIS_VERSION R"(: the options of NVIDIA's tool of this name.

Operations:
  --get-state --pid <pid>
        Print its state: running, locked, checkpointed or failed
  --action lock | checkpoint | restore | unlock --pid <pid>
                                  [--timeout <ms>] [--device-map <map>]
        One step: running to locked, to checkpointed, to locked, to running
  --toggle --pid <pid> [--device-map <map>]
        Running to checkpointed, or checkpointed to running
  --get-restore-tid --pid <pid>
        Print the id of the thread that the driver restores it with

Options:
  --pid, -p <pid>           The process; the id of one of its threads will do
  --timeout, -t <ms>        Of lock: give up after so long, and let it run on (0: never)
  --device-map, -d <map>    Of restore: OLD=NEW,... by UUID; every GPU of the process once
  --help, -h                This text

STASIS_TOGGLE=suspend (cuda_checkpoint.toggle in the configuration) makes --toggle `stasis suspend`: faster, but the GPU's data
is then not in the process, and a copy that another tool makes of it is not whole.
Exit code: 0, or the CUDA error's number modulo 256. More: docs/cuda-checkpoint.md
)";

enum class Verb : uint8_t { kNone, kGetState, kAction, kToggle, kGetRestoreTid, kHelp };

struct Request {
  Verb verb = Verb::kNone;
  std::string action;
  pid_t id = 0;  // of a process or one of its threads
  std::optional<uint32_t> timeout_ms;
  std::optional<std::string> device_map;
};

tl::unexpected<Error> Usage(std::string message) {
  return FailUsage(std::move(message), "`cuda-checkpoint --help` lists what there is");
}

template <class Number>
Status ParseNumber(const char* option, std::string_view text, Number least, Number* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc{} && end == text.data() + text.size() && *out >= least) return {};
  return Usage(fmt::format("{} \"{}\" is not a number that makes sense", option, text));
}

Status SetVerb(Request& request, Verb verb) {
  if (request.verb != Verb::kNone && request.verb != verb) {
    return Usage("only one of --get-state, --action, --toggle and --get-restore-tid");
  }
  request.verb = verb;
  return {};
}

Status CheckComplete(const Request& request) {
  const bool restores = request.verb == Verb::kToggle || request.action == "restore";
  if (request.verb == Verb::kNone) return Usage("nothing was asked for");
  if (request.id == 0) return Usage("--pid is missing");
  if (request.timeout_ms && request.action != "lock") return Usage("--timeout belongs to a lock");
  if (request.device_map && !restores) return Usage("--device-map belongs to a restore");
  return {};
}

Result<Request> Parse(int argc, char** argv) {
  static constexpr option kOptions[] = {{"get-state", no_argument, nullptr, 's'},
                                        {"action", required_argument, nullptr, 'a'},
                                        {"toggle", no_argument, nullptr, 'g'},
                                        {"get-restore-tid", no_argument, nullptr, 'r'},
                                        {"pid", required_argument, nullptr, 'p'},
                                        {"timeout", required_argument, nullptr, 't'},
                                        {"device-map", required_argument, nullptr, 'd'},
                                        {"help", no_argument, nullptr, 'h'},
                                        {nullptr, 0, nullptr, 0}};
  Request request;
  ::opterr = 0;
  for (;;) {
    const int at = ::optind;
    switch (::getopt_long(argc, argv, ":p:t:d:h", kOptions, nullptr)) {
      case -1:
        if (::optind < argc) return Usage(fmt::format("\"{}\" belongs to nothing", argv[::optind]));
        STASIS_TRY(CheckComplete(request));
        return request;
      case 's':
        STASIS_TRY(SetVerb(request, Verb::kGetState));
        break;
      case 'a':
        STASIS_TRY(SetVerb(request, Verb::kAction));
        request.action = ::optarg;
        break;
      case 'g':
        STASIS_TRY(SetVerb(request, Verb::kToggle));
        break;
      case 'r':
        STASIS_TRY(SetVerb(request, Verb::kGetRestoreTid));
        break;
      case 'p':
        STASIS_TRY(ParseNumber<pid_t>("--pid", ::optarg, 1, &request.id));
        break;
      case 't':
        STASIS_TRY(ParseNumber<uint32_t>("--timeout", ::optarg, 0, &request.timeout_ms.emplace()));
        break;
      case 'd':
        request.device_map = ::optarg;
        break;
      case 'h':
        request.verb = Verb::kHelp;
        return request;
      case ':':
        return Usage(fmt::format("{} wants a value", argv[at]));
      default:
        return Usage(fmt::format("{} is no option of this program", argv[at]));
    }
  }
}

// Parses a map in the driver's format, of UUIDs; the old ones may be of another machine. The driver
// itself validates them.
Result<device::GpuMap> ParseMap(const Request& request) {
  device::GpuMap map;
  if (!request.device_map) return map;
  std::string_view rest = *request.device_map;
  for (;;) {
    const size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    const size_t sign = pair.find('=');
    uint8_t bytes[16];
    device::GpuUuid from{std::string(pair.substr(0, sign))};
    device::GpuUuid to{sign == pair.npos ? "" : std::string(pair.substr(sign + 1))};
    if (!device::GpuUuidBytes(from, bytes) || !device::GpuUuidBytes(to, bytes)) {
      return Usage(fmt::format("--device-map: \"{}\" is not GPU-UUID=GPU-UUID", pair));
    }
    map.emplace_back(std::move(from), std::move(to));
    if (comma == rest.npos) return map;
    rest.remove_prefix(comma + 1);
  }
}

// CRIU's plugin asks for the state of the restore thread, and the driver also accepts a thread id.
Result<HostPid> ProcessOf(pid_t id) {
  STASIS_ASSIGN(auto credentials, process::ReadCredentials({id}));
  return credentials.thread_group;
}

// ---- actions

struct Context {
  const Request& request;
  const config::Settings& settings;
  const Paths& paths;
  DeviceControl& device;
  HostPid pid;
};

api::Call CallOf(const Context& context) {
  api::Call call;
  call.paths = context.paths;
  call.settings = context.settings;
  call.cancelled = Interrupted;
  return call;
}

// Like `stasis resume`, but prints nothing.
Status Resume(const Context& context) {
  api::Call call = CallOf(context);
  v1::ResumeRequest request;
  request.set_target(std::to_string(context.pid.value));
  request.set_gpu_map(context.request.device_map.value_or(""));
  STASIS_TRY(api::Resume(call, request));
  return {};
}

Status Suspend(const Context& context) {
  api::Call call = CallOf(context);
  v1::SuspendRequest request;
  request.set_target(std::to_string(context.pid.value));
  STASIS_TRY(api::Suspend(call, request));
  return {};
}

// NVIDIA's restore leaves the process locked.
Status ResumeAndLock(const Context& context) {
  STASIS_TRY(Resume(context));
  auto locked = context.device.Lock(context.pid, Deadline::In(std::chrono::seconds(30)));
  if (locked) return {};
  Error error = std::move(locked).error();
  error.message += "; it was restored, and runs";
  error.not_undone = true;
  return Fail(std::move(error));
}

Status Toggle(const Context& context, const ByHand& process, const device::GpuMap& map) {
  STASIS_ASSIGN(bool suspended, process.IsSuspended());
  if (suspended) return Resume(context);
  STASIS_ASSIGN(ProcessState state, context.device.State(context.pid));
  if (state == ProcessState::kRunning) {
    if (!map.empty()) return Usage("--device-map belongs to a restore, and it is running");
    if (context.settings.toggle == "suspend") return Suspend(context);
  }
  return process.Toggle(map, {});
}

Status Restore(const Context& context, const ByHand& process, const device::GpuMap& map) {
  STASIS_ASSIGN(bool suspended, process.IsSuspended());
  return suspended ? ResumeAndLock(context) : process.Restore(map, {});
}

Status Act(const Context& context) {
  STASIS_ASSIGN(auto map, ParseMap(context.request));
  STASIS_ASSIGN(auto process, ByHand::Open(context.paths, context.device, context.pid));
  const std::string& action = context.request.action;
  if (context.request.verb == Verb::kToggle) return Toggle(context, process, map);
  if (action == "lock") {
    const uint32_t ms = context.request.timeout_ms.value_or(0);
    return process.Lock(ByHand::Memory::kOwn,
                        ms == 0 ? Deadline{} : Deadline::In(std::chrono::milliseconds(ms)));
  }
  if (action == "checkpoint") return process.Checkpoint({});
  if (action == "restore") return Restore(context, process, map);
  if (action == "unlock") return process.Unlock({});
  return Usage(fmt::format("--action \"{}\" is none of lock, checkpoint, restore, unlock", action));
}

Status PrintState(const Context& context) {
  STASIS_ASSIGN(auto process, ByHand::Open(context.paths, context.device, context.pid));
  STASIS_ASSIGN(ProcessState state, context.device.State(context.pid));
  STASIS_ASSIGN(bool away, process.IsMemoryAway());
  if (away && context.request.id != context.pid.value) {
    // CRIU's plugin asks through a thread id before a dump. It would skip a checkpointed process,
    // and the image would lack all GPU data. An error here ends the dump without touching the
    // program.
    return Fail(Code::kFailedPrecondition,
                fmt::format("process {0} was suspended by Stasis, its data is not in it: `stasis "
                            "dump {0}`",
                            context.pid.value),
                fmt::format("or bring it back first: `cuda-checkpoint --toggle --pid {}`",
                            context.pid.value));
  }
  fmt::print("{}\n",
             away ? device::StateName(ProcessState::kCheckpointed) : device::StateName(state));
  return {};
}

Status PrintRestoreThread(const Context& context) {
  // CRIU's plugin asks this while the program is stopped, when the driver cannot determine its
  // state.
  auto tid = context.device.RestoreThread(context.pid);
  if (!tid) {
    STASIS_TRY(ByHand::Open(context.paths, context.device, context.pid));
    return Fail(std::move(tid).error());
  }
  fmt::print("{}\n", *tid);
  return {};
}

std::string Doing(const Request& request) {
  switch (request.verb) {
    case Verb::kGetState:
      return "tell the state of";
    case Verb::kGetRestoreTid:
      return "tell the restore thread of";
    case Verb::kToggle:
      return "toggle";
    default:
      return request.action;
  }
}

Status Run(const Request& request) {
  CatchInterrupts();
  STASIS_ASSIGN(HostPid pid, ProcessOf(request.id));
  STASIS_ASSIGN(config::Config config, config::Load());
  STASIS_ASSIGN(Paths paths, config::OpenPaths(config.settings));
  auto device = device::MakeDeviceControl(gpu_state::ControlOptionsOf(paths, config.settings));
  const Context context{request, config.settings, paths, *device, pid};
  if (request.verb == Verb::kGetState) return PrintState(context);
  if (request.verb == Verb::kGetRestoreTid) return PrintRestoreThread(context);
  return Act(context);
}

// Returns the driver's error number, or the driver's number for the equivalent error.
int ExitCodeOf(const Error& error) {
  struct Row {
    Code code;
    int cuda;
  };
  static constexpr Row kRows[] = {
      {Code::kInvalidArgument, 1},       // INVALID_VALUE
      {Code::kNotFound, 1},              //
      {Code::kResourceExhausted, 2},     // OUT_OF_MEMORY
      {Code::kFailedPrecondition, 401},  // ILLEGAL_STATE
      {Code::kAborted, 600},             // NOT_READY
      {Code::kDeadlineExceeded, 600},    //
      {Code::kPermissionDenied, 800},    // NOT_PERMITTED
      {Code::kUnimplemented, 801},       // NOT_SUPPORTED
  };
  int64_t number = 999;  // UNKNOWN
  for (const Row& row : kRows) {
    if (row.code == error.code) number = row.cuda;
  }
  if (error.domain == Domain::kCuda && error.raw > 0) number = error.raw;
  const int code = static_cast<int>(number % 256);
  return code == 0 ? 1 : code;
}

int Main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  auto request = Parse(argc, argv);
  Status done;
  if (!request) {
    done = Fail(std::move(request).error());
  } else if (request->verb == Verb::kHelp) {
    std::fputs(kHelp, stdout);
  } else {
    done = Run(*request);
    // The driver's steps have already added context.
    if (!done && done.error().context.empty()) {
      done.error().WithContext(fmt::format("cannot {} process {}", Doing(*request), request->id));
    }
  }
  if (std::fflush(stdout) != 0 && done) done = FailErrno(errno, "write the answer");
  if (done) return 0;
  const Error& error = done.error();
  PrintStderr(fmt::format("cuda-checkpoint: {}.\n", error.ToString()));
  if (!error.hint.empty()) PrintStderr(error.hint + ".\n");
  return ExitCodeOf(error);
}

}  // namespace
}  // namespace stasis::cli

int main(int argc, char** argv) {
  stasis::HoldRights();
  try {
    return stasis::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda-checkpoint: an error of ours: %s\n", error.what());
    return 999 % 256;
  }
}
