// A program and the fake services for operations on it, in temporary folders.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "base/file.h"
#include "gpu_state/services.h"
#include "gpu_state/suspended.h"
#include "gpu_state/testing/fake_agents.h"
#include "gpu_state/testing/fake_device.h"
#include "gpu_state/testing/fake_movers.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::fakes {

class World {
 public:
  explicit World(int processes) : program(processes) {
    char folder[] = "/dev/shm/stasis-world-XXXXXX";  // arenas need a tmpfs
    folder_ = ::mkdtemp(folder);
    services.paths = {folder_ + "/run", folder_ + "/data", "", folder_ + "/arena"};
    for (const std::string& path : {services.paths.run, services.paths.data, services.paths.arena,
                                    services.paths.journal(), services.paths.jobs()}) {
      EXPECT_TRUE(MakeDirs(path));
    }
    device = std::make_shared<FakeDevice>(program, log);
    movers = std::make_shared<FakeMovers>(log);
    services.device = device;
    services.agents = std::make_shared<FakeAgents>(program, log);
    services.movers = movers;
    services.stasis_version = "test";
    services.settings.undo_timeout_s = 1;
    // "agent 2 Close" and "device Lock 2" kill process 2; other calls kill the last process.
    log.kill = [this](const std::string& call) {
      int number = 0;
      {
        std::lock_guard lock(program.mutex);
        number = static_cast<int>(program.processes().size());
      }
      if (call.starts_with("agent ")) number = std::atoi(call.c_str() + 6);
      if (call.starts_with("device ")) number = std::atoi(call.c_str() + call.rfind(' '));
      program.Kill(number);
    };
  }
  virtual ~World() {
    movers->DetachArenas();
    EXPECT_TRUE(RemoveTree(folder_));
  }

  // Returns the records of the GPU processes that an operation would now write to its journal.
  std::vector<plan::RecordedProcess> Record() {
    std::lock_guard lock(program.mutex);
    std::vector<plan::RecordedProcess> recorded;
    for (const auto& process : program.processes()) {
      recorded.push_back({process->id, process->state, process->gpus, process->device_bytes});
    }
    return recorded;
  }
  // Returns an empty string if all live processes are running with all their memory and no mover
  // holds any, otherwise the reason.
  std::string WhyNotAsBefore() {
    for (const auto& process : program.processes()) {
      const process::ProcessId id = program.IdOf(process->number);
      if (!process::IsAlive(id)) continue;
      if (std::string why = program.WhyNotRunning(process->number); !why.empty()) return why;
      if (gpu_state::LoadSuspended(services.paths, id)) {
        return "process " + std::to_string(process->number) + " has a record";
      }
    }
    return movers->hold_memory() ? "a mover holds memory" : "";
  }

  CallLog log;
  Program program;
  std::shared_ptr<FakeDevice> device;
  std::shared_ptr<FakeMovers> movers;
  gpu_state::Services services;

 private:
  std::string folder_;
};

}  // namespace stasis::fakes
