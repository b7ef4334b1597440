// Random traces under the policy, and under copies of it with planted bugs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "sharing/policy.h"
#include "sharing/testing/simulation.h"

namespace stasis::sharing {
namespace {

using testing::Habits;
using testing::Simulate;
using testing::Trace;

constexpr uint64_t kTraces = SHARING_TRACES;

// These traces are longer.
Habits HabitsOf(uint64_t seed) { return seed % 8 == 0 ? Habits::kAllWant : Habits::kMixed; }

TEST(SimulationTest, ThePolicyKeepsItsPromises) {
  uint64_t swaps = 0, waits = 0, refusals = 0;
  for (uint64_t seed = 0; seed < kTraces; ++seed) {
    const Trace trace = Simulate(seed, HabitsOf(seed), Decide);
    ASSERT_EQ(trace.violation, "") << "in trace " << seed;
    swaps += trace.swaps;
    waits += trace.waits;
    refusals += trace.refusals;
  }
  // The traces exercise the policy.
  EXPECT_GT(swaps, 10 * kTraces);
  EXPECT_GT(waits, 10 * kTraces);
  EXPECT_GT(refusals, kTraces / 10);
}

// A bug in the policy: it sees another table, or its decision is changed.
struct Bug {
  const char* name;
  void (*see)(Table* table);
  void (*change)(const Table& table, Decision* decision);
};

void SeeAll(Table*) {}
void ChangeNothing(const Table&, Decision*) {}

const Program& Named(const Table& table, const std::string& id) {
  return *std::find_if(table.programs.begin(), table.programs.end(),
                       [&](const Program& program) { return program.id == id; });
}

size_t Gpus(const Program& program) {
  return size_t(std::count_if(program.memory.begin(), program.memory.end(),
                              [](const Memory& memory) { return memory.contexts != 0; }));
}

void Erase(Decision* decision, const std::function<bool(const Action&)>& match) {
  auto& actions = decision->actions;
  actions.erase(std::remove_if(actions.begin(), actions.end(), match), actions.end());
}

const Bug kBugs[] = {
    {"contexts are not counted",
     [](Table* table) {
       for (Program& program : table->programs) {
         for (Memory& memory : program.memory) memory.contexts = 0;
       }
     },
     ChangeNothing},
    {"memory asked for is not counted once granted",
     [](Table* table) {
       for (Program& program : table->programs) {
         for (Memory& memory : program.memory) memory.asked = program.granted ? 0 : memory.asked;
       }
     },
     ChangeNothing},
    {"only the first GPU of a program is seen",
     [](Table* table) {
       for (Program& program : table->programs) {
         bool seen = false;
         for (Memory& memory : program.memory) {
           if (seen) memory = {};
           seen |= memory.contexts != 0;
         }
       }
     },
     ChangeNothing},
    {"operations in progress are taken for ended",
     [](Table* table) {
       for (Program& program : table->programs) {
         if (program.target < program.state) program.state = program.target;
       }
     },
     ChangeNothing},
    {"turns do not last",
     [](Table* table) {
       table->settings.turn_factor = 0;
       table->settings.shortest_turn = Time(0);
     },
     ChangeNothing},
    {"turns last for a third of the time",
     [](Table* table) {
       table->settings.turn_factor = 3;
       table->settings.shortest_turn /= 3;
     },
     ChangeNothing},
    {"turns last too long", [](Table* table) { table->settings.turn_factor *= 10; }, ChangeNothing},
    {"the last one to come is served first",
     [](Table* table) {
       for (Program& program : table->programs) {
         if (program.wanted_since) program.wanted_since = table->now - *program.wanted_since;
       }
     },
     ChangeNothing},
    {"batch programs starve",
     [](Table* table) { table->settings.batch_patience = std::chrono::hours(10); }, ChangeNothing},
    {"programs on several GPUs go last",
     [](Table* table) {
       for (Program& program : table->programs) {
         if (program.wanted_since && Gpus(program) > 1) program.wanted_since = table->now;
       }
     },
     ChangeNothing},
    {"pins are not seen",
     [](Table* table) {
       for (Program& program : table->programs) program.pinned = false;
     },
     ChangeNothing},
    {"a suspend by hand is not seen",
     [](Table* table) {
       for (Program& program : table->programs) program.by_hand = ByHand::kNothing;
     },
     ChangeNothing},
    {"host memory is not counted", [](Table* table) { table->host_bytes *= 100; }, ChangeNothing},
    {"all idle programs leave, as soon as one wants the GPU", SeeAll,
     [](const Table& table, Decision* decision) {
       const bool makes_room = std::any_of(
           decision->actions.begin(), decision->actions.end(),
           [](const Action& action) { return action.kind == Action::Kind::kSuspendData; });
       for (const Program& program : table.programs) {
         if (makes_room && program.state == State::kAwake && program.target == State::kAwake &&
             !program.wanted_since && !program.pinned &&
             table.now - program.used_last > std::chrono::seconds(5) &&
             table.now - program.turn_began > std::chrono::minutes(1)) {
           decision->actions.push_back({Action::Kind::kSuspendData, program.id, ""});
         }
       }
       // Each program once.
       std::vector<Action> once;
       for (const Action& action : decision->actions) {
         if (std::none_of(once.begin(), once.end(),
                          [&](const Action& other) { return other.id == action.id; })) {
           once.push_back(action);
         }
       }
       decision->actions = once;
     }},
    {"contexts always leave", SeeAll,
     [](const Table&, Decision* decision) {
       for (Action& action : decision->actions) {
         if (action.kind == Action::Kind::kSuspendData) action.kind = Action::Kind::kSuspendFully;
       }
     }},
    {"idle programs leave although none wants the GPU", SeeAll,
     [](const Table& table, Decision* decision) {
       if (!decision->actions.empty()) return;
       for (const Program& program : table.programs) {
         if (program.state == State::kAwake && program.target == State::kAwake &&
             !program.wanted_since && !program.pinned &&
             table.now - std::max(program.used_last, program.turn_began) >
                 std::chrono::seconds(30)) {
           decision->actions.push_back({Action::Kind::kSuspendData, program.id, ""});
         }
       }
     }},
    {"one program is forgotten", SeeAll,
     [](const Table&, Decision* decision) {
       Erase(decision, [](const Action& action) {
         return action.id == "p1" && action.kind == Action::Kind::kResume;
       });
     }},
    {"interactive programs never make way for batch programs", SeeAll,
     [](const Table& table, Decision* decision) {
       const bool batch_waits =
           std::any_of(table.programs.begin(), table.programs.end(), [](const Program& program) {
             return program.share_class == Class::kBatch && program.wanted_since;
           });
       Erase(decision, [&](const Action& action) {
         return batch_waits && action.kind == Action::Kind::kSuspendData &&
                Named(table, action.id).share_class == Class::kInteractive;
       });
     }},
    {"the decision is never looked at again", SeeAll,
     [](const Table&, Decision* decision) { decision->look_again.reset(); }},
};

class PlantedBugTest : public ::testing::TestWithParam<Bug> {};

TEST_P(PlantedBugTest, IsFound) {
  const Bug& bug = GetParam();
  auto policy = [&](const Table& table) {
    Table seen = table;
    bug.see(&seen);
    Decision decision = Decide(seen);
    bug.change(table, &decision);
    return decision;
  };
  for (uint64_t seed = 0; seed < kTraces; ++seed) {
    const Trace trace = Simulate(seed, HabitsOf(seed), policy);
    if (trace.violation.empty()) continue;
    std::cout << "trace " << seed << ", " << trace.violation << "\n";
    return;
  }
  FAIL() << "not found: " << bug.name;
}

INSTANTIATE_TEST_SUITE_P(All, PlantedBugTest, ::testing::ValuesIn(kBugs),
                         [](const ::testing::TestParamInfo<Bug>& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = isalnum(c) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace stasis::sharing
