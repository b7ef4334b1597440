// Stages for tests of held dumps and restores (hold.h), in which a fake plugin drives CRIU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "operations/hold.h"
#include "operations/testing/fake_plugin.h"
#include "operations/testing/stage.h"
#include "store/limits.h"

namespace stasis::fakes {

using Kind = criu::PluginRequest::Kind;

inline const operations::HoldOptions kByReference = {.by_reference = true, .subject = {}};

inline std::string ImagesOf(World& world) { return world.services.paths.data + "/criu"; }
inline std::string DataOf(World& world) { return ImagesOf(world) + "/stasis"; }
inline std::string InventoryOf(World& world) { return ImagesOf(world) + "/inventory.img"; }
inline bool HasData(World& world) { return PathExists(DataOf(world) + "/" + store::kManifestName); }

inline std::unique_ptr<World> HeldWorld(int processes) {
  auto world = std::make_unique<World>(processes);
  for (int number = 1; number <= processes; ++number) world->program.AddAgent(number, 2);
  EXPECT_TRUE(MakeDirs(ImagesOf(*world)));
  EXPECT_TRUE(ReplaceFile(InventoryOf(*world), "dump 1"));
  return world;
}

inline void KillProgram(World& world) {
  std::vector<process::ProcessId> ids;
  {
    std::lock_guard lock(world.program.mutex);
    for (const auto& process : world.program.processes()) ids.push_back(process->id);
  }
  for (const auto& id : ids) Sleepers::Kill(id);
}

// The events during a simulated dump.
struct DumpScript {
  bool leave_running = false;
  bool refused_after_commit = false;  // another action script refuses the dump
  bool opens_gpu_file = false;        // a process opens a GPU file before CRIU stops it
  bool early = false;                 // with leave_running: CRIU's caller waits for CRIU's exit
};

inline std::shared_ptr<FakePlugin> Dumper(World& world, DumpScript script = {}) {
  auto plugin = std::make_shared<FakePlugin>(world.log, ImagesOf(world));
  const process::HostPid root = world.program.root().pid;
  plugin->Add({"Begin", {Kind::kBeginDump, root}});
  plugin->Add(
      {"Pause", {Kind::kPause, root, script.leave_running, script.early}, {}, [p = plugin.get()] {
         p->Exit();
       }});
  plugin->Add([&world, script, root]() -> FakePlugin::Step {
    if (script.opens_gpu_file) world.program.At(1).files_held = {"fd 7 -> /dev/nvidia0"};
    return {"Check", {Kind::kCheck, root}};
  });
  plugin->Add({"Commit", {Kind::kCommit, root}});
  plugin->Add([&world, script, p = plugin.get()]() -> FakePlugin::Step {
    const bool stays = script.leave_running || !p->refusal().empty();
    return {"End",
            {Kind::kEnd, {}, stays},
            [&world, script, stays, p] {
              if (!stays && !script.refused_after_commit) KillProgram(world);
              if (!script.early) p->Exit();
            },
            [p] { p->Exit(); }};
  });
  if (script.early) {
    auto exit = [p = plugin.get()] { p->Exit(); };
    plugin->Add({"Complete", {Kind::kComplete}, exit, exit});
  }
  return plugin;
}

inline Result<operations::OperationResult> RunHold(World& world,
                                                   const std::shared_ptr<FakePlugin>& plugin,
                                                   const operations::HoldOptions& options = {}) {
  STASIS_ASSIGN(auto hold, operations::Hold::Open(plugin));
  operations::Session session = MakeSession(world, hold->verb());
  auto done = hold->Run(session, options, {});
  hold->Answer(done ? Status() : Status(Fail(done.error())));
  return done;
}

}  // namespace stasis::fakes
