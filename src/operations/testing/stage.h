// Runs operations on a World: once, or again with a fault at each call.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu_state/testing/fake_criu.h"
#include "gpu_state/testing/world.h"
#include "operations/operations.h"
#include "operations/recover.h"
#include "operations/session.h"

namespace stasis::fakes {

// A shim whose CRIU runs `restore`.
class FakeHost final : public operations::RestoreHost {
 public:
  using Restore = std::function<Result<process::HostPid>(const criu::NotifyHandler&)>;
  FakeHost(CallLog& log, Restore restore) : log_(log), restore_(std::move(restore)), shim_(1) {}

  const process::ProcessId& shim() const override { return id_; }
  Result<std::unique_ptr<criu::CriuSession>> ConnectCriu(const Deadline&) override {
    return log_.Run("host", "ConnectCriu", [&]() -> Result<std::unique_ptr<criu::CriuSession>> {
      return std::make_unique<Criu>(*this);
    });
  }
  Status SetRoot(const process::ProcessId& root, const Deadline&) override {
    return log_.Run("host", "SetRoot", [&]() -> Status {
      std::lock_guard lock(mutex_);
      root_ = root;
      return {};
    });
  }
  bool root_ended() const override { return !process::IsAlive(Root()); }
  // A root that has ended has done so by itself.
  std::optional<int> RootStatus(const Deadline&) override {
    return root_ended() ? std::optional<int>(0) : std::nullopt;
  }
  Status Commit(const Deadline&) override {
    return log_.Run("host", "Commit", []() -> Status { return {}; });
  }
  Status Abort(const Deadline&) override {
    return log_.Run("host", "Abort", [&]() -> Status {
      const process::ProcessId root = Root();
      if (root.pid.value != 0) Sleepers::Kill(root);
      return {};
    });
  }

 private:
  class Criu final : public criu::CriuSession {
   public:
    explicit Criu(FakeHost& host) : host_(host) {}
    Status Dump(const criu::DumpRequest&, const criu::NotifyHandler&, const Deadline&) override {
      return Fail(Code::kInternal, "not a dump");
    }
    Result<process::HostPid> Restore(const criu::RestoreRequest& request,
                                     const criu::NotifyHandler& handler, const Deadline&) override {
      std::ofstream(request.log_path) << "log\n";
      return host_.log_.Run("criu", "Restore", [&] { return host_.restore_(handler); });
    }

   private:
    FakeHost& host_;
  };

  process::ProcessId Root() const {
    std::lock_guard lock(mutex_);
    return root_;
  }

  CallLog& log_;
  const Restore restore_;
  const Sleepers shim_;
  const process::ProcessId id_ = shim_.Tree().root().id;
  mutable std::mutex mutex_;
  process::ProcessId root_;  // guarded by the mutex
};

class FakeHosts final : public operations::RestoreHosts {
 public:
  FakeHosts(CallLog& log, FakeHost::Restore restore) : log_(log), restore_(std::move(restore)) {}
  Result<std::unique_ptr<operations::RestoreHost>> Start(operations::HostSpec spec,
                                                         const Deadline&) override {
    std::ofstream(spec.shim.stdio.log) << "";
    return log_.Run("host", "Start", [&]() -> Result<std::unique_ptr<operations::RestoreHost>> {
      return std::make_unique<FakeHost>(log_, restore_);
    });
  }

 private:
  CallLog& log_;
  const FakeHost::Restore restore_;
};

inline operations::Session MakeSession(World& world, const std::string& verb) {
  world.movers->DetachArenas();
  auto journal = plan::Journal::Prepare(world.services.paths, verb);
  EXPECT_TRUE(journal) << journal.error().ToString();
  operations::Session session;
  session.services = world.services;
  session.journal = std::make_shared<plan::Journal>(std::move(*journal));
  session.criu = std::make_shared<FakeCriu>(world.program, world.log);
  return session;
}

inline checks::Target TargetOf(World& world) {
  return {std::to_string(world.program.root().pid.value), "", world.program.root()};
}

using Operation = std::function<Result<operations::OperationResult>(World&)>;

inline Result<operations::OperationResult> Suspend(
    World& world, const operations::OperationOptions& options = {}) {
  operations::Session session = MakeSession(world, "suspend");
  return operations::Suspend(session, TargetOf(world), options);
}
inline Result<operations::OperationResult> Resume(World& world,
                                                  const operations::ResumeOptions& resume = {}) {
  operations::Session session = MakeSession(world, "resume");
  return operations::Resume(session, TargetOf(world), resume, {});
}
// Recovers. Returns whether all entries were recovered, and their outcomes.
inline std::pair<bool, std::string> Recover(World& world) {
  world.movers->DetachArenas();
  auto report = operations::Recover(world.services, Deadline::In(std::chrono::seconds(2)));
  if (!report) return {false, report.error().ToString()};
  bool ok = true;
  std::string outcomes;
  for (const auto& entry : *report) {
    ok &= entry.ok;
    outcomes += entry.outcome + "\n";
  }
  return {ok, outcomes};
}

// Returns an empty string if every live GPU process is suspended, with a record and without GPU
// memory.
inline std::string WhyNotSuspended(World& world, bool keep_context = false) {
  std::lock_guard lock(world.program.mutex);
  for (const auto& process : world.program.processes()) {
    if (!process::IsAlive(process->id) || !process->uses_gpu) continue;
    const std::string name = "process " + std::to_string(process->number);
    auto wanted =
        keep_context ? device::ProcessState::kRunning : device::ProcessState::kCheckpointed;
    if (process->state != wanted) {
      return name + " is " + std::string(device::StateName(process->state));
    }
    if (!gpu_state::LoadSuspended(world.services.paths, process->id)) return name + ": no record";
    if (!process->agent) continue;
    if (process->agent->state != agent_protocol::State::kReleased) {
      return name + ": memory is not away";
    }
    if (!process->agent->held.empty()) return name + ": its agent holds memory";
  }
  return world.movers->hold_memory() ? "a mover holds memory" : "";
}

inline std::string Joined(const std::vector<std::string>& calls) {
  std::string text;
  for (const auto& call : calls) text += call + "\n";
  return text;
}

// For each call that `operation` makes, runs `operation` in a new world with a fault at that call,
// and then `check`, which returns a description of any failure. `prepare` makes the worlds. Each
// call gets only one kind of fault, in turn; STASIS_EVERY_FAULT=1 in the environment tries them
// all.
struct FaultCase {
  std::string call;
  int occurrence;
  Fault fault;
};
inline void ForEachFault(
    const std::function<std::unique_ptr<World>()>& prepare, const Operation& operation,
    const std::vector<Fault>& faults,
    const std::function<std::string(World&, const FaultCase&,
                                    const Result<operations::OperationResult>&)>& check) {
  std::vector<std::pair<std::string, int>> calls;
  {
    auto world = prepare();
    world->log.Clear();
    auto done = operation(*world);
    ASSERT_TRUE(done) << done.error().ToString();
    std::map<std::string, int> counts;
    for (const auto& call : world->log.calls()) calls.emplace_back(call, ++counts[call]);
  }
  static constexpr const char* kNames[] = {"fail", "fail after", "hang", "kill"};
  const bool all = std::getenv("STASIS_EVERY_FAULT") != nullptr;
  for (size_t at = 0; at < calls.size(); ++at) {
    const auto& [call, occurrence] = calls[at];
    for (size_t i = 0; i < (all ? faults.size() : 1); ++i) {
      const Fault fault = faults[(at + i) % faults.size()];
      auto world = prepare();
      world->log.Clear();
      world->log.Set(call, fault, occurrence);
      auto done = operation(*world);
      const std::string why = check(*world, {call, occurrence, fault}, done);
      if (why.empty()) continue;
      ADD_FAILURE() << call << " #" << occurrence << ", " << kNames[static_cast<int>(fault)] << ": "
                    << why << "\n"
                    << (done ? "it succeeded" : done.error().ToString() + " | " + done.error().hint)
                    << "\n"
                    << Joined(world->log.calls());
    }
  }
}

}  // namespace stasis::fakes
