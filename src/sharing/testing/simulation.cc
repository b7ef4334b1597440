#include "sharing/testing/simulation.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace stasis::sharing::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Time kNever = Time::max();
constexpr int64_t kGiB = int64_t{1} << 30;

struct Behaviour {
  bool busy = false;
  Time busy_left{0};   // the GPU time of the present task, while busy
  Time idle_until{0};  // while not busy
  Time move_ends = kNever;
  Time allocates_at = kNever;  // after a grant
  Time waits_since{0};         // for the bound
  Time awake_since{0};         // the last resume or grant
  Time idle_since{0};
  // Of its last suspend by the policy:
  bool was_away = false;
  std::string left_for;
  bool helped = false;  // a program on one of its GPUs was served since
};

class Simulation {
 public:
  Simulation(uint64_t seed, Habits habits, const Policy& policy)
      : random_(seed), habits_(habits), policy_(policy) {
    const size_t gpus = Number(1, 3);
    for (size_t i = 0; i < gpus; ++i)
      table_.gpu_bytes.push_back(uint64_t(Number(2, 10)) * 8 * kGiB);
    table_.settings.idle_after = milliseconds(Number(100, 3000));
    table_.settings.shortest_turn = milliseconds(Number(100, 3000));
    table_.settings.batch_patience = seconds(Number(1, 60));
    const size_t programs = Number(2, 7);
    for (size_t i = 0; i < programs; ++i) AddProgram();
    uint64_t data = 0;
    for (const Program& program : table_.programs) data += Asked(program);
    // Room for the data of all, for as much as may have to leave, or for less.
    tight_ = habits == Habits::kMixed && Chance(4);
    table_.host_bytes = tight_      ? data * Number(2, 9) / 10
                        : Chance(2) ? HostNeed(table_, 0) * Number(100, 130) / 100
                                    : data * 3;
  }

  Trace Run() {
    const Time end = habits_ == Habits::kAllWant ? 40 * LongestTurn() : Time(seconds(600));
    const int most_events = habits_ == Habits::kAllWant ? 400 : 80;
    for (int i = 0; i < most_events && table_.now < end; ++i) {
      Advance(std::min(NextEvent(), end));
      Happen();
      Act();
      Check();
      if (!trace_.violation.empty()) return trace_;
    }
    for (size_t gpu = 0; gpu < lost_.size(); ++gpu) {
      trace_.lost = std::max(trace_.lost, double(lost_[gpu].count()) / double(table_.now.count()));
    }
    // Enough turns, so that the first arrivals do not matter.
    if (habits_ == Habits::kAllWant && table_.now > 20 * LongestTurn() && trace_.lost > 0.15) {
      Violation("a GPU lost " + std::to_string(int(trace_.lost * 100)) + " % of its time to swaps");
    }
    return trace_;
  }

 private:
  int64_t Number(int64_t least, int64_t most) {
    return least + int64_t(random_() % uint64_t(most - least + 1));
  }
  bool Chance(int64_t one_in) { return Number(1, one_in) == 1; }

  void Violation(const std::string& what) {
    if (!trace_.violation.empty()) return;
    trace_.violation = "at " + std::to_string(double(table_.now.count()) / 1e9) + " s: " + what;
  }

  Behaviour& Of(const Program& program) { return behaviours_[program.id]; }

  Program* Find(const std::string& id) {
    for (Program& program : table_.programs) {
      if (program.id == id) return &program;
    }
    return nullptr;
  }

  static uint64_t Asked(const Program& program) {
    uint64_t sum = 0;
    for (const Memory& memory : program.memory) sum += memory.asked;
    return sum;
  }
  static uint64_t Data(const Program& program) {
    uint64_t sum = 0;
    for (const Memory& memory : program.memory) sum += memory.data;
    return sum;
  }

  // A new program has no memory yet, and asks for all of it at once.
  void AddProgram() {
    Program program;
    program.id = "p" + std::to_string(next_id_++);
    program.user = Chance(2) ? 1000 : 1001;
    program.share_class = Chance(3) ? Class::kBatch : Class::kInteractive;
    program.state = program.target = State::kSuspended;
    program.memory.resize(table_.gpu_bytes.size());
    const bool several = table_.gpu_bytes.size() > 1 && Chance(3);
    const size_t first = size_t(Number(0, int64_t(table_.gpu_bytes.size()) - 1));
    for (size_t gpu = 0; gpu < table_.gpu_bytes.size(); ++gpu) {
      if (!several && gpu != first) continue;
      const auto capacity = int64_t(table_.gpu_bytes[gpu]);
      program.memory[gpu] = {0, uint64_t(Number(1, 8)) * kGiB / 8,
                             uint64_t(Number(capacity / 20, capacity * 9 / 10))};
    }
    if (Chance(50)) program.memory[first].asked += table_.gpu_bytes[first];  // fits nowhere
    program.swap_cost =
        milliseconds(Number(50, 500)) + milliseconds(int64_t(Asked(program)) * 50 / kGiB);
    Behaviour& behaviour = Of(program);
    behaviour.idle_until = habits_ == Habits::kAllWant ? table_.now : table_.now + RandomIdle();
    table_.programs.push_back(program);
  }

  Time RandomIdle() {
    return Chance(3) ? milliseconds(Number(1, 2000)) : milliseconds(Number(1, 60000));
  }
  Time RandomTask() {
    if (habits_ == Habits::kAllWant) return std::chrono::hours(1000);
    return Chance(2) ? milliseconds(Number(1, 3000)) : milliseconds(Number(1, 90000));
  }

  static bool IsStable(const Program& program) { return program.state == program.target; }
  static bool IsAwake(const Program& program) {
    return program.state == State::kAwake && program.target == State::kAwake;
  }
  // Runs tasks now: awake, and no allocation of it waits.
  static bool Runs(const Program& program) { return IsAwake(program) && Asked(program) == 0; }

  Time NextEvent() {
    Time next = std::min(look_again_, outside_at_);
    for (const Program& program : table_.programs) {
      const Behaviour& behaviour = Of(program);
      next = std::min({next, behaviour.move_ends, behaviour.allocates_at});
      if (!behaviour.busy) next = std::min(next, behaviour.idle_until);
      if (behaviour.busy && Runs(program)) next = std::min(next, table_.now + behaviour.busy_left);
    }
    return std::max(next, table_.now);
  }

  void Advance(Time to) {
    const Time span = to - table_.now;
    for (Program& program : table_.programs) {
      Behaviour& behaviour = Of(program);
      if (!behaviour.busy || !Runs(program)) continue;
      behaviour.busy_left -= std::min(span, behaviour.busy_left);
      program.used_last = to;
    }
    lost_.resize(table_.gpu_bytes.size());
    for (size_t gpu = 0; gpu < lost_.size(); ++gpu) {
      bool moving = false, awake = false;
      for (const Program& program : table_.programs) {
        if (program.memory[gpu].contexts == 0) continue;
        moving |= !IsStable(program);
        awake |= IsAwake(program);
      }
      if (moving && !awake) lost_[gpu] += span;
    }
    table_.now = to;
  }

  void Wants(Program& program) {
    if (program.wanted_since) return;
    program.wanted_since = table_.now;
    Of(program).waits_since = table_.now;
    ++trace_.waits;
  }

  void Happen() {
    for (Program& program : table_.programs) {
      Behaviour& behaviour = Of(program);
      if (behaviour.move_ends <= table_.now) EndMove(program);
      if (behaviour.allocates_at <= table_.now) Allocate(program);
      if (behaviour.busy && Runs(program) && behaviour.busy_left <= Time(0)) {
        behaviour.busy = false;
        behaviour.idle_since = table_.now;
        behaviour.idle_until = table_.now + RandomIdle();
      } else if (!behaviour.busy && behaviour.idle_until <= table_.now) {
        behaviour.busy = true;
        behaviour.busy_left = RandomTask();
        if (IsAwake(program)) {
          program.used_last = table_.now;
          if (Chance(5)) AskForMore(program);
        }
      }
      if (behaviour.busy && !IsAwake(program)) Wants(program);
    }
    if (outside_at_ <= table_.now) Outside();
  }

  void AskForMore(Program& program) {
    for (size_t gpu = 0; gpu < table_.gpu_bytes.size(); ++gpu) {
      Memory& memory = program.memory[gpu];
      const auto bytes = uint64_t(Number(1, int64_t(table_.gpu_bytes[gpu]) / 8));
      if (memory.contexts == 0) continue;
      const uint64_t before = std::exchange(memory.asked, bytes);
      if (!tight_ && !HostHasRoom(table_, 0)) {
        memory.asked = before;
        continue;
      }
      Wants(program);
      return;
    }
  }

  void EndMove(Program& program) {
    Behaviour& behaviour = Of(program);
    behaviour.move_ends = kNever;
    program.state = program.target;
    if (program.state != State::kAwake) return;
    if (program.by_hand == ByHand::kResume) program.by_hand = ByHand::kNothing;
    Allocate(program);
  }

  void Allocate(Program& program) {
    Behaviour& behaviour = Of(program);
    behaviour.allocates_at = kNever;
    for (Memory& memory : program.memory) {
      memory.data += memory.asked;
      memory.asked = 0;
    }
    program.granted = false;
    program.wanted_since.reset();
    program.turn_began = behaviour.awake_since = table_.now;
  }

  // What is neither a program's habit nor the policy's doing.
  void Outside() {
    outside_at_ = table_.now + seconds(Number(20, 200));
    if (habits_ == Habits::kAllWant) return;
    Program& program = table_.programs[size_t(Number(0, int64_t(table_.programs.size()) - 1))];
    bool changed = true;
    if (Chance(3)) {
      table_.programs.erase(table_.programs.begin() + (&program - table_.programs.data()));
      AddProgram();
      if (!tight_ && !HostHasRoom(table_, 0)) table_.programs.pop_back();
      if (table_.programs.empty()) {
        AddProgram();
        table_.host_bytes = std::max(table_.host_bytes, 3 * Asked(table_.programs[0]));
      }
    } else if (Chance(2)) {
      program.pinned = !program.pinned;
    } else if (IsAwake(program) && !program.granted && !tight_ && HostHolds(program)) {
      program.by_hand = ByHand::kSuspend;
      Begin(program, State::kContextKept);
    } else if (IsStable(program) && program.state != State::kAwake) {
      program.by_hand = ByHand::kResume;
      Wants(program);
    } else {
      changed = false;
    }
    if (changed) NobodyWaitedBefore();
  }

  // Others still find host memory when this program's data is there.
  bool HostHolds(const Program& program) const {
    Table table = table_;
    for (Program& row : table.programs) {
      if (row.id == program.id) row.state = row.target = State::kContextKept;
    }
    return HostHasRoom(table, 0);
  }

  // The bound holds only from now on, and a suspend may turn out to have been in vain.
  void NobodyWaitedBefore() {
    for (Program& program : table_.programs) {
      Of(program).waits_since = table_.now;
      Of(program).was_away = false;
    }
    round_excused_ = true;
  }

  void Begin(Program& program, State target) {
    program.target = target;
    Of(program).move_ends = table_.now + program.swap_cost / 2 * Number(80, 120) / 100;
    if (target != State::kAwake && Of(program).busy) Wants(program);
  }

  static bool ShareGpu(const Program& a, const Program& b) {
    for (size_t gpu = 0; gpu < a.memory.size(); ++gpu) {
      if (a.memory[gpu].contexts != 0 && b.memory[gpu].contexts != 0) return true;
    }
    return false;
  }

  void Gains(Program& program) {
    program.promised = false;
    round_served_.insert(program.id);
    for (Program& other : table_.programs) {
      if (other.id != program.id && ShareGpu(program, other)) {
        Of(other).helped = true;
      }
    }
  }

  void Act() {
    const Decision decision = policy_(table_);
    look_again_ = decision.look_again.value_or(kNever);
    for (const Action& action : decision.actions) {
      Program* program = Find(action.id);
      if (program == nullptr || !IsStable(*program)) {
        return Violation("acted on " + action.id + ", which is gone or moving");
      }
      switch (action.kind) {
        case Action::Kind::kSuspendData:
          SuspendByPolicy(*program, State::kContextKept, action.for_id);
          break;
        case Action::Kind::kSuspendFully:
          SuspendByPolicy(*program, State::kSuspended, action.for_id);
          break;
        case Action::Kind::kResume:
          ResumeByPolicy(*program);
          break;
        case Action::Kind::kGrant:
          if (program->state != State::kAwake || Asked(*program) == 0 || program->granted) {
            Violation("granted nothing to " + action.id);
          }
          program->granted = true;
          Of(*program).allocates_at = table_.now + milliseconds(Number(0, 50));
          Gains(*program);
      }
    }
    refused_.clear();
    for (const Refusal& refusal : decision.refusals) Refused(refusal);
  }

  void SuspendByPolicy(Program& program, State target, const std::string& for_id) {
    Behaviour& behaviour = Of(program);
    if (Program* waiting = Find(for_id)) waiting->promised = true;
    if (program.pinned) Violation("suspended " + program.id + ", which is pinned");
    if (target >= program.state) Violation("suspended " + program.id + " again");
    round_left_.insert({program.id, {program.state, target}});
    if (program.state == State::kAwake) {
      const Time stay = table_.now - behaviour.awake_since;
      const Time idle = table_.now - behaviour.idle_since;
      const bool by_hand =
          std::any_of(table_.programs.begin(), table_.programs.end(), [&](const Program& other) {
            return other.by_hand == ByHand::kResume && other.user == program.user;
          });
      if (behaviour.busy && !by_hand && stay < 10 * program.swap_cost) {
        Violation("suspended " + program.id + " before its turn was over");
      }
      if (!behaviour.busy && !by_hand && stay < 10 * program.swap_cost &&
          idle < std::min(table_.settings.idle_after, program.swap_cost)) {
        Violation("suspended " + program.id + ", which had just become idle");
      }
      behaviour.was_away = true;
      behaviour.left_for = for_id;
      behaviour.helped = false;
    }
    Begin(program, target);
  }

  void ResumeByPolicy(Program& program) {
    Behaviour& behaviour = Of(program);
    if (program.state == State::kAwake) Violation("resumed " + program.id + ", which is awake");
    if (program.by_hand == ByHand::kSuspend) {
      Violation("resumed " + program.id + ", which was suspended by hand");
    }
    if (!program.wanted_since) Violation("resumed " + program.id + ", which wants nothing");
    program.granted = true;
    ++trace_.swaps;
    Gains(program);
    Begin(program, State::kAwake);
    if (behaviour.was_away && !behaviour.helped && !HasItsRoom(behaviour.left_for)) {
      Violation("nobody gained from the suspend of " + program.id);
    }
    behaviour.was_away = false;
  }

  // The program still waits, and will fit when all operations in progress have ended.
  bool HasItsRoom(const std::string& id) {
    const Program* waiting = Find(id);
    if (waiting == nullptr || !waiting->promised) return false;
    for (size_t gpu = 0; gpu < table_.gpu_bytes.size(); ++gpu) {
      const Memory& memory = waiting->memory[gpu];
      uint64_t used = memory.contexts + memory.data + memory.asked;
      for (const Program& other : table_.programs) {
        if (&other != waiting) used += Occupied(other.memory[gpu], other, other.target);
      }
      if (used > table_.gpu_bytes[gpu]) return false;
    }
    return true;
  }

  void Refused(const Refusal& refusal) {
    Program* program = Find(refusal.id);
    if (program == nullptr || !program->wanted_since) return Violation("refused " + refusal.id);
    ++trace_.refusals;
    refused_.insert(refusal.id);
    round_excused_ = true;
    Of(*program).waits_since = table_.now;
    if (refusal.reason == Refusal::Reason::kHostMemory && !tight_) {
      Violation("refused " + refusal.id + " for host memory, which suffices");
    }
    if (program->state == State::kAwake) {  // the allocation fails
      for (Memory& memory : program->memory) memory.asked = 0;
      program->wanted_since.reset();
      program->promised = false;
    }
  }

  Time LongestTurn() const {
    Time turn = table_.settings.shortest_turn;
    for (const Program& program : table_.programs) turn = std::max(turn, 10 * program.swap_cost);
    return turn;
  }

  Time Bound(const Program& program) const {
    Time slowest{0};
    for (const Program& other : table_.programs) {
      slowest = std::max(slowest, other.swap_cost * 120 / 100);
    }
    const bool batch = program.share_class == Class::kBatch;
    return (batch ? table_.settings.batch_patience : Time(0)) +
           int64_t(table_.programs.size()) * (LongestTurn() + 2 * slowest);
  }

  uint64_t Occupied(const Memory& memory, const Program& program, State state) const {
    const uint64_t asked = program.granted ? memory.asked : 0;
    if (state == State::kAwake) return memory.contexts + memory.data + asked;
    return state == State::kContextKept ? memory.contexts : 0;
  }

  void Check() {
    std::vector<uint64_t> used(table_.gpu_bytes.size());
    uint64_t host = 0;
    for (Program& program : table_.programs) {
      for (size_t gpu = 0; gpu < used.size(); ++gpu) {
        used[gpu] +=
            Occupied(program.memory[gpu], program, std::max(program.state, program.target));
      }
      if (!IsAwake(program)) host += Data(program);
      CheckWait(program);
    }
    for (size_t gpu = 0; gpu < used.size(); ++gpu) {
      if (used[gpu] > table_.gpu_bytes[gpu])
        Violation("more memory than GPU " + std::to_string(gpu) + " has");
    }
    if (host > table_.host_bytes) Violation("more data than fits into host memory");
    CheckRound(used);
  }

  void CheckWait(Program& program) {
    Behaviour& behaviour = Of(program);
    const bool waits = program.wanted_since && !IsMovingUp(program) && !program.granted &&
                       program.by_hand != ByHand::kSuspend && !tight_;
    if (!waits) {
      behaviour.waits_since = table_.now;
    } else if (table_.now - behaviour.waits_since > Bound(program)) {
      Violation(program.id + " waits for too long");
    }
  }
  static bool IsMovingUp(const Program& program) {
    return program.target == State::kAwake && program.state != State::kAwake;
  }

  // A round ends when no program waits or moves. If one program gained in it, all that left were
  // needed: what they had does not fit now.
  void CheckRound(const std::vector<uint64_t>& used) {
    for (const Program& program : table_.programs) {
      if (!IsStable(program) || program.granted) return;
      if (program.wanted_since && program.by_hand != ByHand::kSuspend &&
          refused_.count(program.id) == 0) {
        return;
      }
    }
    for (const auto& [id, move] : round_left_) {
      const Program* program = Find(id);
      if (round_excused_ || round_served_.size() != 1 || program == nullptr ||
          round_served_.count(id) != 0) {
        continue;
      }
      const auto [from, to] = move;
      for (State state = to; state < from; state = State(int(state) + 1)) {
        const State above = State(int(state) + 1);
        bool fits = true, any = false;
        for (size_t gpu = 0; gpu < used.size(); ++gpu) {
          const Memory& memory = program->memory[gpu];
          const uint64_t bytes =
              Occupied(memory, *program, above) - Occupied(memory, *program, state);
          fits &= used[gpu] + bytes <= table_.gpu_bytes[gpu];
          any |= bytes != 0;
        }
        if (fits && any) Violation(id + " left although there was room");
      }
    }
    round_left_.clear();
    round_served_.clear();
    round_excused_ = false;
  }

  std::mt19937_64 random_;
  const Habits habits_;
  const Policy& policy_;
  Table table_;
  std::map<std::string, Behaviour> behaviours_;
  int next_id_ = 0;
  bool tight_ = false;
  Time look_again_ = kNever;
  Time outside_at_{seconds(30)};
  std::vector<Time> lost_;
  std::set<std::string> refused_;
  std::map<std::string, std::pair<State, State>> round_left_;
  std::set<std::string> round_served_;
  bool round_excused_ = false;
  Trace trace_;
};

}  // namespace

Trace Simulate(uint64_t seed, Habits habits, const Policy& policy) {
  return Simulation(seed, habits, policy).Run();
}

}  // namespace stasis::sharing::testing
