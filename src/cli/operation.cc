#include "cli/operation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "api/result_json.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/size.h"
#include "cli/account.h"
#include "cli/interrupts.h"

namespace stasis::cli {
namespace {

// Overwrites one line on a terminal. Prints nothing if stderr is a file or a pipe.
api::OnEvent TerminalProgress(const Globals& globals) {
  if (globals.quiet || !::isatty(STDERR_FILENO)) return {};
  // Phases may overlap, so each has its own clock for its rate.
  auto begun = std::make_shared<std::map<std::string, Stopwatch>>();
  return [begun](const v1::OperationEvent& event) {
    if (event.has_phase_begun()) {
      (*begun)[event.phase_begun().name()] = Stopwatch();
      PrintStderr(fmt::format("\r\033[K{} ...", event.phase_begun().name()));
    } else if (event.has_phase_bytes()) {
      const auto& at = event.phase_bytes();
      PrintStderr("\r\033[K" + at.name() + " " +
                  FormatProgress(at.done(), at.total(), (*begun)[at.name()].Seconds()));
    } else if (event.has_phase_ended()) {
      PrintStderr("\r\033[K");
    }
  };
}

}  // namespace

void CommonOptions::AddTo(App verb) {
  verb.add_option(
          "--timeout", timeout_s,
          "Limit in seconds for each phase (default: timeouts.phase_s of the configuration, "
          "or the phase's default)")
      ->range(0.001, 86400.0);
  verb.add_flag("--dry-run", dry_run, "Run all checks and print the plan, but change nothing");
  verb.add_flag("--ignore-memory", ignore_memory,
                "Continue even if host memory or the disk seems too small");
}

void CriuFlags::AddTo(App verb) {
  verb.add_option("--tcp", tcp,
                  "What to do with established TCP connections: refuse, close or keep")
      ->one_of({"refuse", "close", "keep"});
  verb.add_flag("--file-locks", file_locks, "Save file locks, and take them again at a restore");
  verb.add_flag("--link-remap", link_remap, "Save deleted files that still have another name");
  verb.add_option("--external", external, "Declare an external resource, in CRIU's syntax");
  verb.add_option("--criu-opt", criu_opts, "Pass another option to CRIU, K=V");
}

void AddAssumeUnshared(App verb, bool& assume) {
  verb.add_flag(
      "--assume-unshared", assume,
      "For a program without the agent: assume that its processes share no GPU memory. If "
      "they do, the program is lost");
}

void ArenaLimitFlag::AddTo(App verb) {
  verb.add_option(
          "--arena-limit", text,
          "Most host memory to use for GPU data, at least 64M; a dump sends the rest through "
          "files; buffers of up to 64 MiB for each GPU are not counted (default: all that is free)")
      ->option_text("SIZE");
}

Result<uint64_t> ArenaLimitFlag::Bytes() const {
  return text.empty() ? 0 : Annotate(ParseSize(text), "--arena-limit");
}

v1::OperationOptions CommonOptions::ToMessage() const {
  v1::OperationOptions message;
  message.set_timeout_s(timeout_s);
  message.set_dry_run(dry_run);
  message.set_ignore_memory(ignore_memory);
  return message;
}

v1::CriuOptions CriuFlags::ToMessage() const {
  v1::CriuOptions message;
  message.set_tcp(tcp);
  message.set_file_locks(file_locks);
  message.set_link_remap(link_remap);
  for (const auto& what : external) message.add_external(what);
  for (const auto& option : criu_opts) message.add_others(option);
  return message;
}

void PlaceFlags::AddTo(App verb) {
  verb.add_option("--root", root, "For runc:ID: the folder of runc's state, as its own --root");
  verb.add_option("--containerd-address", containerd_address,
                  "For containerd:ID: its socket (default: CONTAINERD_ADDRESS, or the usual one)");
}

v1::ContainerPlaces PlaceFlags::ToMessage() const {
  v1::ContainerPlaces message;
  if (!root.empty()) message.set_runc_root(AbsolutePath(root));
  // The daemon does not have this process's environment, so the request contains the address.
  const char* address = std::getenv("CONTAINERD_ADDRESS");
  if (!containerd_address.empty()) {
    message.set_containerd_address(AbsolutePath(containerd_address));
  } else if (address != nullptr && *address == '/') {
    message.set_containerd_address(address);
  }
  return message;
}

void GpuFlags::AddTo(App verb, const std::string& when) {
  verb.add_option(
      "--gpu-map", map,
      when +
          "Move to other GPUs: OLD=NEW,... by UUID, index or name; auto: replace GPUs that "
          "are missing, or that are not among those of --gpus or CUDA_VISIBLE_DEVICES");
  verb.add_option(
      "--gpus", gpus,
      when +
          "The GPUs that the program may use from now on, by UUID, index or name (default "
          "with --gpu-map auto: CUDA_VISIBLE_DEVICES, otherwise all)");
}

std::string GpuFlags::Granted() const {
  if (!gpus.empty() || map != "auto") return gpus;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return {};
  return *visible == '\0' ? "-1" : visible;  // an empty variable grants no GPU
}

std::string FindingText(const v1::CheckResponse::Finding& finding) {
  std::string text =
      fmt::format("{:<8} {:<19} {}\n", finding.level(), finding.id(), finding.found());
  auto add = [&](const char* what, const std::string& words) {
    if (!words.empty()) text += fmt::format("{:<28} {:<6} {}\n", "", what, words);
  };
  add("stops:", finding.stops());
  if (finding.level() != "note") add("means:", finding.meaning());
  add("fix:", finding.fix());
  return text;
}

void TargetWords::AddTo(App verb, const std::string& name, const std::string& help) {
  verb.add_option(name, words, help)->required()->expected(1, 2)->option_text(" ");
}

Result<std::string> TargetWords::Name() const {
  if (words.size() == 1) return words[0];
  const std::string &kind = words[0], &name = words[1];
  const bool number = name.find_first_not_of("0123456789") == std::string::npos;
  if ((kind == "job" && !number) || (kind == "process" && number)) return name;
  return FailUsage(
      fmt::format("\"{} {}\" is neither a job nor a process", kind, name),
      "a job's name or a process id is enough; `job NAME` and `process PID` mean the same");
}

void AddGpuEnabled(App verb) {
  verb.add_ignored_flag("-g,--gpu-enabled", "Accepted without effect")->group("");
}

Outcome RunOperation(const Globals& globals, const OperationBody& operation,
                     const std::function<void(const v1::OperationResult&)>& done) {
  CatchInterrupts();
  STASIS_ASSIGN(auto client, OpenClient(globals));
  if (client.has_daemon()) LeaveToDaemon();
  STASIS_ASSIGN(const v1::OperationResult result, operation(client, TerminalProgress(globals)));
  if (done) done(result);
  // While a program is attached, the account is a note on stderr.
  if (!globals.quiet || !globals.result_on_stderr) {
    PrintResult(globals, AccountText(result), api::ResultJson(result));
  }
  return 0;
}

Result<std::string> RunRestore(const Globals& globals, const v1::RestoreRequest& request) {
  std::string job;
  STASIS_TRY(RunOperation(
      globals,
      [&](api::Client& client, const api::OnEvent& on_event) {
        return client.Restore(request, on_event);
      },
      [&](const v1::OperationResult& result) { job = result.job(); }));
  return job;
}

void AttachFlags::AddTo(App verb) {
  verb.add_option(
      "--detach-keys", detach_keys,
      "Keys that detach from the job's terminal (default: ctrl-p,ctrl-q; none: no keys)");
}

v1::AttachOptions AttachFlags::ToMessage() const {
  v1::AttachOptions message;
  message.set_detach_keys(detach_keys);
  message.set_watch(watch);
  return message;
}

api::Note NoteFor(const Globals& globals) { return globals.quiet ? api::Note() : PrintStderr; }

Result<api::Call> OpenCall(const Globals& globals) {
  api::Call call;
  call.settings = globals.settings();
  STASIS_ASSIGN(call.paths, OpenPaths(globals));
  return call;
}

Result<api::Client> OpenClient(const Globals& globals) {
  api::ClientOptions options;
  options.without_daemon = globals.no_daemon;
  options.cancelled = Interrupted;
  options.cancel_fd = InterruptFd();
  return api::Client::Open(globals.settings(), std::move(options));
}

}  // namespace stasis::cli
