// A fake CRIU for a Program. Its calls are "criu Start", "criu Dump", ….
#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "criu/criu.h"
#include "gpu_state/testing/call_log.h"
#include "gpu_state/testing/program.h"

namespace stasis::fakes {

// A CRIU that stops nothing: it asks the handler and then kills the program, as CRIU does. Its
// plugin leaves the queues of processes of HIP stopped, also with leave_running: the real one
// continues them only if a process has as many device files as the machine.
class FakeCriuDump final : public criu::CriuSession {
 public:
  FakeCriuDump(Program& program, CallLog& log) : program_(program), log_(log) {}
  Status Dump(const criu::DumpRequest& request, const criu::NotifyHandler& handler,
              const Deadline&) override {
    return log_.Run("criu", "Dump", [&]() -> Status {
      std::ofstream(request.log_path) << "log\n";
      std::ofstream(request.images_dir + "/core-1.img") << "core";
      if (!request.options.plugins.empty()) RunPlugin(request);
      STASIS_TRY(log_.Run("criu", "Write", []() -> Status { return {}; }));
      criu::Notification notification;
      notification.moment = criu::Moment::kPostDump;
      STASIS_TRY(handler(notification));
      if (request.leave_running) return {};
      STASIS_TRY(log_.Run("criu", "End", []() -> Status { return {}; }));
      for (const auto& id : Ids()) Sleepers::Kill(id);
      return {};
    });
  }
  Result<process::HostPid> Restore(const criu::RestoreRequest&, const criu::NotifyHandler&,
                                   const Deadline&) override {
    return Fail(Code::kInternal, "not a restore");
  }

 private:
  void RunPlugin(const criu::DumpRequest& request) {
    // "criu Plugin" fails as the real one does, whose error is then only in the log.
    const Status saved = log_.Run("criu", "Plugin", []() -> Status { return {}; });
    std::lock_guard lock(program_.mutex);
    for (const auto& process : program_.processes()) {
      if (!process->uses_gpu) continue;
      process->queues_stopped = true;
      if (saved) {
        std::ofstream(request.images_dir + "/amdgpu-kfd-" + std::to_string(process->number) +
                      ".img");
      }
    }
  }
  std::vector<process::ProcessId> Ids() {
    std::lock_guard lock(program_.mutex);
    std::vector<process::ProcessId> ids;
    for (const auto& process : program_.processes()) ids.push_back(process->id);
    return ids;
  }

  Program& program_;
  CallLog& log_;
};

class FakeCriu final : public criu::Criu {
 public:
  FakeCriu(Program& program, CallLog& log) : program_(program), log_(log) {}
  Status CheckPrivileges() override {
    return log_.Run("criu", "CheckPrivileges", []() -> Status { return {}; });
  }
  Result<std::string> Find(const std::string&) override {
    return log_.Run("criu", "Find", []() -> Result<std::string> { return std::string("criu"); });
  }
  Result<std::string> Version(const std::string&, const Deadline&) override {
    return log_.Run("criu", "Version", []() -> Result<std::string> { return std::string("4.1"); });
  }
  Result<std::unique_ptr<criu::CriuSession>> StartDump(const std::string&, const criu::DumpRequest&,
                                                       bool, const std::map<int, int>&,
                                                       const Deadline&) override {
    return log_.Run("criu", "Start", [&]() -> Result<std::unique_ptr<criu::CriuSession>> {
      return std::make_unique<FakeCriuDump>(program_, log_);
    });
  }

 private:
  Program& program_;
  CallLog& log_;
};

}  // namespace stasis::fakes
