// A fake CRIU for a Program. Its calls are "criu Start", "criu Dump", ….
#pragma once

#include <fcntl.h>

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "criu/criu.h"
#include "gpu_state/testing/call_log.h"
#include "gpu_state/testing/program.h"

namespace stasis::fakes {

// A CRIU that stops nothing: it asks the handler and then kills the program, as CRIU does. Its
// plugin leaves the queues of processes of HIP stopped, also with leave_running: the real one
// continues them only if a process has as many device files as the machine.
class FakeCriuDump final : public criu::CriuSession {
 public:
  // `fds` are the descriptors that CRIU inherits, by their numbers in CRIU.
  FakeCriuDump(Program& program, CallLog& log, const std::map<int, int>& fds)
      : program_(program), log_(log) {
    for (const auto& [number, fd] : fds) inherited_[number].Reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  Status PrepareDump(const criu::DumpRequest&, const Deadline&) override {
    return log_.Run("criu", "Prepare", []() -> Status { return {}; });
  }
  void CancelPrepared() override {
    (void)log_.Run("criu", "Cancel", []() -> Status { return {}; });
  }
  Status Dump(const criu::DumpRequest& request, const criu::NotifyHandler& handler,
              const Deadline&) override {
    return log_.Run("criu", "Dump", [&]() -> Status {
      std::ofstream(request.log_path) << "log\n";
      std::ofstream(request.images_dir + "/core-1.img") << "core";
      std::ofstream(request.images_dir + "/pagemap-1.img") << "pagemap";
      STASIS_TRY(WritePages(request.images_dir + "/pages-1.img"));
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

  // CPU memory as FakeCriuDump saves it.
  static std::string Pages(size_t count) { return std::string(count * 4096, 'p'); }
  size_t page_count = 1;

 private:
  Status WritePages(const std::string& path) {
    constexpr std::string_view kOwn = "/proc/self/fd/";
    auto link = ReadLink(path);
    if (!link) return ReplaceFile(path, Pages(page_count));
    if (!link->starts_with(kOwn)) return Fail(Code::kInternal, "a link to " + *link);
    const int number = std::stoi(link->substr(kOwn.size()));
    return WriteAll(inherited_.at(number).get(), Pages(page_count));
  }
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
  std::map<int, UniqueFd> inherited_;
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
                                                       bool, const std::map<int, int>& fds,
                                                       const Deadline&) override {
    return log_.Run("criu", "Start", [&]() -> Result<std::unique_ptr<criu::CriuSession>> {
      auto dump = std::make_unique<FakeCriuDump>(program_, log_, fds);
      dump->page_count = page_count;
      return dump;
    });
  }

  size_t page_count = 1;  // of CPU memory

 private:
  Program& program_;
  CallLog& log_;
};

}  // namespace stasis::fakes
