#include "cli/cuda_checkpoint.h"

#include <fmt/format.h>
#include <getopt.h>
#include <signal.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "api/drop_in.h"
#include "api/share_hold.h"
#include "cli/interrupts.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

// CRIU's CUDA plugin searches the first two KiB of the help text for "--action".
constexpr const char* kHelp = R"(Stasis's cuda-checkpoint )" STASIS_VERSION
                              R"(, with the options of NVIDIA's tool of that name.

Operations:
  --get-state --pid <pid>
        Print the state of the process: running, locked, checkpointed or failed
  --action lock | checkpoint | restore | unlock --pid <pid>
                                  [--timeout <ms>] [--device-map <map>]
        Do one step, in this order: running to locked, to checkpointed, to locked, to running
  --toggle --pid <pid> [--device-map <map>]
        Running to checkpointed, or checkpointed to running
  --get-restore-tid --pid <pid>
        Print the id of the thread that the driver uses to restore the process

Options:
  --pid, -p <pid>           The process, or one of its threads
  --timeout, -t <ms>        For lock: give up after this time and let the process run (0: no limit)
  --device-map, -d <map>    For restore: OLD=NEW,... by UUID, each GPU of the process once
  --help, -h                Print this text

With STASIS_TOGGLE=suspend (cuda_checkpoint.toggle in the configuration), --toggle is `stasis suspend`. This is faster, but
the GPU data is then not in the process, so copies of the process by other tools are incomplete.
Exit code: 0, or the CUDA error's number modulo 256. More: docs/cuda-checkpoint.md
)";

tl::unexpected<Error> Usage(std::string message) {
  return FailUsage(std::move(message), "`cuda-checkpoint --help` lists the options");
}

template <class Number>
Status ParseNumber(const char* option, std::string_view text, Number least, Number* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error == std::errc{} && end == text.data() + text.size() && *out >= least) return {};
  return Usage(fmt::format("{} \"{}\" is not a valid number", option, text));
}

Status SetStep(v1::GpuStepRequest& request, const std::string& step) {
  if (!request.step().empty() && request.step() != step) {
    return Usage("only one of --get-state, --action, --toggle and --get-restore-tid can be given");
  }
  request.set_step(step);
  return {};
}

Status CheckAction(std::string_view action) {
  for (std::string_view known : {"lock", "checkpoint", "restore", "unlock"}) {
    if (action == known) return {};
  }
  return Usage(fmt::format("--action \"{}\" is not lock, checkpoint, restore or unlock", action));
}

// `timeout` and `map` say whether these options were given.
Status CheckComplete(const v1::GpuStepRequest& request, bool timeout, bool map) {
  const std::string& step = request.step();
  if (step.empty()) return Usage("no operation was given");
  if (request.target().empty()) return Usage("--pid is missing");
  if (timeout && step != "lock") return Usage("--timeout requires --action lock");
  if (map && request.gpu_map().empty()) return Usage("--device-map is empty");
  if (map && step != "toggle" && step != "restore") return Usage("--device-map requires a restore");
  return {};
}

// Returns nothing for --help.
Result<std::optional<v1::GpuStepRequest>> Parse(int argc, char** argv) {
  static constexpr option kOptions[] = {{"get-state", no_argument, nullptr, 's'},
                                        {"action", required_argument, nullptr, 'a'},
                                        {"toggle", no_argument, nullptr, 'g'},
                                        {"get-restore-tid", no_argument, nullptr, 'r'},
                                        {"pid", required_argument, nullptr, 'p'},
                                        {"timeout", required_argument, nullptr, 't'},
                                        {"device-map", required_argument, nullptr, 'd'},
                                        {"help", no_argument, nullptr, 'h'},
                                        {nullptr, 0, nullptr, 0}};
  v1::GpuStepRequest request;
  bool has_timeout = false, has_map = false;
  ::opterr = 0;
  for (;;) {
    const int at = ::optind;
    switch (::getopt_long(argc, argv, ":p:t:d:h", kOptions, nullptr)) {
      case -1:
        if (::optind < argc) return Usage(fmt::format("unexpected \"{}\"", argv[::optind]));
        STASIS_TRY(CheckComplete(request, has_timeout, has_map));
        return std::optional(request);
      case 's':
        STASIS_TRY(SetStep(request, "state"));
        break;
      case 'a':
        STASIS_TRY(CheckAction(::optarg));
        STASIS_TRY(SetStep(request, ::optarg));
        break;
      case 'g':
        STASIS_TRY(SetStep(request, "toggle"));
        break;
      case 'r':
        STASIS_TRY(SetStep(request, "restore-tid"));
        break;
      case 'p': {
        pid_t id = 0;
        STASIS_TRY(ParseNumber<pid_t>("--pid", ::optarg, 1, &id));
        request.set_target(std::to_string(id));
        break;
      }
      case 't': {
        uint32_t ms = 0;
        STASIS_TRY(ParseNumber<uint32_t>("--timeout", ::optarg, 0, &ms));
        request.set_timeout_s(ms / 1000.0);
        has_timeout = true;
        break;
      }
      case 'd':
        request.set_gpu_map(::optarg);
        has_map = true;
        break;
      case 'h':
        return std::optional<v1::GpuStepRequest>();
      case ':':
        return Usage(fmt::format("{} requires a value", argv[at]));
      default:
        return Usage(fmt::format("unknown option {}", argv[at]));
    }
  }
}

std::string Describe(const v1::GpuStepRequest& request) {
  if (request.step() == "state") return "read the state of";
  if (request.step() == "restore-tid") return "find the restore thread of";
  return request.step();
}

Status Run(const v1::GpuStepRequest& request) {
  CatchInterrupts();
  STASIS_ASSIGN(config::Config config, config::Load());
  api::Call call;
  call.settings = config.settings;
  STASIS_ASSIGN(call.paths, config::OpenPaths(config.settings));
  call.cancelled = Interrupted;
  std::unique_ptr<api::ShareHold> held;
  const auto hold = [&](const std::string& target, const std::string& method) -> Status {
    STASIS_ASSIGN(held, api::HoldShare(call, target, method, InterruptFd()));
    return {};
  };
  const auto response = api::DropInStep(call, request, hold);
  if (held) held->Finish(response.has_value());
  if (!response) return Fail(response.error());
  if (request.step() == "state") fmt::print("{}\n", response->state());
  if (request.step() == "restore-tid") fmt::print("{}\n", response->restore_tid());
  return {};
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

}  // namespace

int CudaCheckpoint(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  auto request = Parse(argc, argv);
  Status done;
  if (!request) {
    done = Fail(std::move(request).error());
  } else if (!*request) {
    std::fputs(kHelp, stdout);
  } else {
    done = Run(**request);
    // The driver's steps have already added context.
    if (!done && done.error().context.empty()) {
      done.error().WithContext(
          fmt::format("cannot {} process {}", Describe(**request), (*request)->target()));
    }
  }
  if (std::fflush(stdout) != 0 && done) done = FailErrno(errno, "write the result");
  if (done) return 0;
  const Error& error = done.error();
  PrintStderr(fmt::format("cuda-checkpoint: {}.\n", error.ToString()));
  if (!error.hint.empty()) PrintStderr(error.hint + ".\n");
  return ExitCodeOf(error);
}

}  // namespace stasis::cli
