#include <unistd.h>

#include <cerrno>
#include <memory>

#include "api/methods.h"
#include "base/file.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

constexpr size_t kMostJsonBytes = 256u << 20;

Outcome Logs(const Globals& globals, const v1::ReadLogRequest& request) {
  if (globals.json && request.follow()) return FailUsage("--json and -f exclude each other");
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  std::string text;  // for --json
  Status written;
  call.emit = [&](const google::protobuf::MessageLite& message) {
    const auto& part = static_cast<const v1::ReadLogResponse&>(message);
    if (globals.json) {
      text += part.data();
    } else if (written) {
      written = WriteAll(STDOUT_FILENO, part.data());
    }
  };
  call.cancelled = [&] { return !written || text.size() >= kMostJsonBytes; };
  STASIS_ASSIGN(const auto last, api::ReadLog(call, request));
  // A reader that closed the pipe has read enough.
  if (!written && written.error().raw != EPIPE) {
    Error error = ErrnoError(static_cast<int>(written.error().raw),
                             "cannot write the log to standard output");
    return Fail(std::move(error).WithHint("The job itself is not affected."));
  }
  if (globals.json) {
    PrintResult(globals, "", {{"id", request.job()}, {"log", last.log()}, {"text", text}});
  }
  return 0;
}

}  // namespace

void RegisterLogs(App app, const std::function<void(Action)>& select) {
  struct Options {
    std::string job;
    bool follow = false;
  };
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("logs", "Show the output of a job");
  verb->add_option("JOB", options->job, "The job")->required();
  verb->add_flag("-f,--follow", options->follow, "Print new output until the job has ended");
  verb->callback([=] {
    select([=](const Globals& globals) {
      v1::ReadLogRequest request;
      request.set_job(options->job);
      request.set_follow(options->follow);
      return Logs(globals, request);
    });
  });
}

}  // namespace stasis::cli
