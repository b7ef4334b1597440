#include "sharing/policy.h"

#include <algorithm>
#include <cassert>
#include <tuple>

namespace stasis::sharing {
namespace {

// Bytes on each GPU. Signed, because a shortage is negative free memory.
using Bytes = std::vector<int64_t>;

bool AllAtLeast(const Bytes& a, const Bytes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](int64_t x, int64_t y) { return x >= y; });
}

void Add(Bytes* to, const Bytes& bytes, int64_t sign = 1) {
  for (size_t gpu = 0; gpu < to->size(); ++gpu) (*to)[gpu] += sign * bytes[gpu];
}

Bytes Least(Bytes a, const Bytes& b) {
  for (size_t gpu = 0; gpu < a.size(); ++gpu) a[gpu] = std::min(a[gpu], b[gpu]);
  return a;
}

// What the program occupies in `state`.
Bytes Occupied(const Program& program, State state, bool with_asked) {
  Bytes bytes;
  for (const Memory& memory : program.memory) {
    uint64_t sum = state == State::kSuspended ? 0 : memory.contexts;
    if (state == State::kAwake) sum += memory.data + (with_asked ? memory.asked : 0);
    bytes.push_back(int64_t(sum));
  }
  return bytes;
}

uint64_t DataBytes(const Program& program) {
  uint64_t sum = 0;
  for (const Memory& memory : program.memory) sum += memory.data;
  return sum;
}

uint64_t AskedBytes(const Program& program) {
  uint64_t sum = 0;
  for (const Memory& memory : program.memory) sum += memory.asked;
  return sum;
}

// The greatest number if the sum is greater: a program can say any size.
uint64_t Sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

// One thing that makes room: the program goes to a lower state.
struct Step {
  size_t program;
  State to;
};

class Decider {
 public:
  explicit Decider(const Table& table)
      : table_(table),
        free_now_(table.gpu_bytes.begin(), table.gpu_bytes.end()),
        host_left_(int64_t(table.host_bytes)),
        planned_(table.programs.size(), false) {
    free_soon_ = free_now_;
    for (const Program& program : table.programs) {
      assert(program.memory.size() == table.gpu_bytes.size());
      settled_ &= program.state == program.target;
      const State most = std::max(program.state, program.target);
      Add(&free_now_, Occupied(program, most, program.granted), -1);
      Add(&free_soon_, Occupied(program, program.target, program.granted), -1);
      if (std::min(program.state, program.target) != State::kAwake) {
        host_left_ -= int64_t(DataBytes(program));
      }
    }
    free_later_ = free_soon_;
  }

  Decision Run() {
    for (size_t waiting : Queue()) {
      if (!planned_[waiting]) Serve(waiting);
    }
    return std::move(decision_);
  }

 private:
  const Program& At(size_t index) const { return table_.programs[index]; }

  bool Waits(const Program& program) const {
    return program.wanted_since.has_value() && program.state == program.target &&
           program.by_hand != ByHand::kSuspend && !program.granted;
  }

  // The time from which on the program goes before later ones.
  Time Due(const Program& program) const {
    if (program.by_hand == ByHand::kResume) return Time::min();
    const bool batch = program.share_class == Class::kBatch;
    return *program.wanted_since + (batch ? table_.settings.batch_patience : Time{0});
  }

  std::vector<size_t> Queue() const {
    std::vector<size_t> queue;
    for (size_t i = 0; i < table_.programs.size(); ++i) {
      if (Waits(At(i))) queue.push_back(i);
    }
    std::stable_sort(queue.begin(), queue.end(), [this](size_t a, size_t b) {
      return std::tuple(!At(a).promised, Due(At(a))) < std::tuple(!At(b).promised, Due(At(b)));
    });
    return queue;
  }

  // What the program needs in addition to what it occupies.
  Bytes Need(const Program& program) const {
    Bytes need = Occupied(program, State::kAwake, true);
    Add(&need, Occupied(program, program.state, false), -1);
    return need;
  }

  bool FitsBesidePinned(size_t waiting) const {
    Bytes room(table_.gpu_bytes.begin(), table_.gpu_bytes.end());
    for (size_t i = 0; i < table_.programs.size(); ++i) {
      const Program& other = At(i);
      if (i != waiting && other.pinned) {
        Add(&room, Occupied(other, other.target, other.granted), -1);
      }
    }
    return AllAtLeast(room, Occupied(At(waiting), State::kAwake, true));
  }

  Time IdleFrom(const Program& program) const {
    if (program.wanted_since) return Time::max();  // an allocation of it waits
    return std::max(program.used_last, program.turn_began) +
           std::max(table_.settings.idle_after, program.swap_cost);
  }

  bool IsIdle(const Program& program) const { return IdleFrom(program) <= table_.now; }

  // Returns false if the program keeps its place even when its turn is over.
  bool TakesTurns(const Program& waiting, const Program& program) const {
    return program.share_class == Class::kBatch || Due(waiting) <= table_.now;
  }

  // The time from which on the program can be made to leave for `waiting`.
  Time LeavesFrom(const Program& program, const Program& waiting) const {
    if (!TakesTurns(waiting, program)) return IdleFrom(program);
    // Else a user could end the turns of others as often as he likes.
    if (waiting.by_hand == ByHand::kResume && waiting.user == program.user) return table_.now;
    const Time turn_end = program.turn_began + Turn(table_.settings, program, waiting);
    return std::min(IdleFrom(program), turn_end);
  }

  // Returns true if the program takes part in no plan, and may leave for `waiting` sooner or later.
  bool MayLeaveInTime(size_t index, size_t waiting) const {
    const Program& program = At(index);
    return index != waiting && !planned_[index] && !program.pinned &&
           program.by_hand != ByHand::kSuspend && program.target == State::kAwake &&
           LeavesFrom(program, At(waiting)) != Time::max();
  }

  bool MayLeaveNow(size_t index, size_t waiting) const {
    const Program& program = At(index);
    return MayLeaveInTime(index, waiting) && program.state == State::kAwake && !program.granted &&
           program.by_hand == ByHand::kNothing && LeavesFrom(program, At(waiting)) <= table_.now;
  }

  // All steps that may make room for `waiting`, now or else sooner or later, in the order in which
  // they are taken.
  std::vector<Step> Candidates(size_t waiting, bool now) const {
    std::vector<size_t> awake, asleep;
    for (size_t i = 0; i < table_.programs.size(); ++i) {
      if (now ? MayLeaveNow(i, waiting) : MayLeaveInTime(i, waiting)) awake.push_back(i);
      if (KeepsOnlyContexts(i, waiting)) asleep.push_back(i);
    }
    std::stable_sort(awake.begin(), awake.end(),
                     [this](size_t a, size_t b) { return AwakeOrder(a) < AwakeOrder(b); });
    std::stable_sort(asleep.begin(), asleep.end(), [this](size_t a, size_t b) {
      return std::tuple(Waits(At(a)), At(a).used_last) < std::tuple(Waits(At(b)), At(b).used_last);
    });
    const auto busy =
        std::find_if_not(awake.begin(), awake.end(), [this](size_t i) { return IsIdle(At(i)); });
    std::vector<Step> steps;
    for (auto i = awake.begin(); i != busy; ++i) steps.push_back({*i, State::kContextKept});
    for (size_t i : asleep) steps.push_back({i, State::kSuspended});
    for (auto i = busy; i != awake.end(); ++i) steps.push_back({*i, State::kContextKept});
    for (size_t i : awake) steps.push_back({i, State::kSuspended});
    return steps;
  }

  bool KeepsOnlyContexts(size_t index, size_t waiting) const {
    const Program& program = At(index);
    return index != waiting && !planned_[index] && !program.pinned &&
           program.state == State::kContextKept && program.target == State::kContextKept;
  }

  std::tuple<bool, bool, Time> AwakeOrder(size_t index) const {
    const Program& program = At(index);
    if (IsIdle(program)) return {false, false, program.used_last};
    return {true, program.share_class == Class::kInteractive, program.turn_began};
  }

  // What the step frees if the program is in state `from` before.
  Bytes Freed(const Step& step, State from) const {
    const Program& program = At(step.program);
    Bytes freed = Occupied(program, from, program.granted);
    Add(&freed, Occupied(program, step.to, false), -1);
    return freed;
  }

  // The state of the step's program before the step, and after the steps in `taken`.
  State Before(const Step& step, const std::vector<Step>& taken) const {
    State state = At(step.program).target;
    for (const Step& other : taken) {
      if (other.program == step.program) state = std::min(state, other.to);
    }
    return state;
  }

  // Returns steps that make `need` fit into `spare`, or nothing if the candidates do not suffice.
  // No step of the result can be left out.
  std::optional<std::vector<Step>> MakeRoom(Bytes spare, const Bytes& need,
                                            const std::vector<Step>& candidates) {
    Add(&spare, need, -1);
    const Bytes none(spare.size(), 0);
    int64_t host_left = host_left_;
    std::vector<Step> taken;
    for (const Step& step : candidates) {
      if (AllAtLeast(spare, none)) break;
      const State from = Before(step, taken);
      const Bytes freed = Freed(step, from);
      bool helps = false;
      for (size_t gpu = 0; gpu < spare.size(); ++gpu) helps |= spare[gpu] < 0 && freed[gpu] > 0;
      if (!helps) continue;
      if (from == State::kAwake) {
        const auto data = int64_t(DataBytes(At(step.program)));
        if (data > host_left) {
          short_of_host_ = true;
          continue;
        }
        host_left -= data;
      }
      Add(&spare, freed);
      taken.push_back(step);
    }
    if (!AllAtLeast(spare, none)) return std::nullopt;
    for (size_t i = taken.size(); i-- > 0;) {
      std::vector<Step> others = taken;
      others.erase(others.begin() + int64_t(i));
      const State without = Before(taken[i], others);
      if (without < taken[i].to) continue;  // its contexts leave too
      Bytes left = spare;
      Add(&left, Freed(taken[i], without), -1);
      if (!AllAtLeast(left, none)) continue;
      spare = std::move(left);
      taken = std::move(others);
    }
    return taken;
  }

  // Reserves what the steps free. Their programs take no part in any other plan.
  void Reserve(const std::vector<Step>& steps, bool now) {
    std::vector<Step> done;
    for (const Step& step : steps) {
      planned_[step.program] = true;
      const State from = Before(step, done);
      Add(&free_later_, Freed(step, from));
      if (now) Add(&free_soon_, Freed(step, from));
      if (from == State::kAwake) host_left_ -= int64_t(DataBytes(At(step.program)));
      done.push_back(step);
    }
  }

  void Suspend(const std::vector<Step>& steps, size_t waiting) {
    for (const Step& step : steps) {
      if (Before(step, steps) < step.to) continue;  // a later step goes further
      const auto kind =
          step.to == State::kSuspended ? Action::Kind::kSuspendFully : Action::Kind::kSuspendData;
      decision_.actions.push_back({kind, At(step.program).id, At(waiting).id});
    }
  }

  void LookAgainAt(Time time) {
    if (time <= table_.now || time == Time::max()) return;
    decision_.look_again = std::min(time, decision_.look_again.value_or(Time::max()));
  }

  // Notes the times at which programs begin to be able to leave for `waiting`.
  void NoteTimes(size_t waiting) {
    LookAgainAt(Due(At(waiting)));
    for (const Program& program : table_.programs) {
      if (program.target == State::kAwake) LookAgainAt(LeavesFrom(program, At(waiting)));
    }
  }

  void Refuse(size_t waiting, Refusal::Reason reason) {
    decision_.refusals.push_back({reason, At(waiting).id});
  }

  // Returns false if the program must not grow, because it or others might then never find host
  // memory for what has to leave. If that is so already, it is not this program's fault: others
  // have grown without asking.
  bool MayGrow(size_t waiting) const {
    if (AskedBytes(At(waiting)) == 0) return true;
    Table table = table_;
    for (size_t i = 0; i < table.programs.size(); ++i) {
      Program& other = table.programs[i];
      if (i == waiting || planned_[i] || other.granted) continue;
      for (Memory& memory : other.memory) memory.asked = 0;
    }
    if (HostHasRoom(table, 0)) return true;
    for (Memory& memory : table.programs[waiting].memory) memory.asked = 0;
    return !HostHasRoom(table, 0);
  }

  void Serve(size_t waiting) {
    const Program& program = At(waiting);
    if (!FitsBesidePinned(waiting)) return Refuse(waiting, Refusal::Reason::kGpuMemory);
    if (!MayGrow(waiting)) return Refuse(waiting, Refusal::Reason::kHostMemory);
    const Bytes need = Need(program);
    const Bytes spare = Least(free_soon_, free_later_);
    if (AllAtLeast(Least(free_now_, spare), need)) {
      Add(&free_now_, need, -1);
      Add(&free_soon_, need, -1);
      const auto kind =
          program.state == State::kAwake ? Action::Kind::kGrant : Action::Kind::kResume;
      decision_.actions.push_back({kind, program.id, ""});
    } else {
      NoteTimes(waiting);
      short_of_host_ = false;
      if (auto steps = MakeRoom(spare, need, Candidates(waiting, true))) {
        Reserve(*steps, true);
        Suspend(*steps, waiting);
        Add(&free_soon_, need, -1);
      } else if (auto in_time = MakeRoom(free_later_, need, Candidates(waiting, false))) {
        Reserve(*in_time, false);
      } else {
        // Nothing is reserved without a plan: it may even have to leave for another program.
        if (short_of_host_ && settled_) Refuse(waiting, Refusal::Reason::kHostMemory);
        return;
      }
    }
    planned_[waiting] = true;
    settled_ = false;
    Add(&free_later_, need, -1);
  }

  const Table& table_;
  // Free memory on each GPU, less what is reserved for programs that were served before:
  Bytes free_now_;    // while operations are in progress
  Bytes free_soon_;   // when these, and those of this decision, have ended
  Bytes free_later_;  // when also programs have left that the decision waits for
  int64_t host_left_;
  std::vector<bool> planned_;  // the program takes part in a plan, or is served
  bool settled_ = true;        // no operation is in progress, and nothing was reserved
  bool short_of_host_ = false;
  Decision decision_;
};

}  // namespace

Time Turn(const Settings& settings, const Program& program, const Program& waiting) {
  return std::max(settings.shortest_turn,
                  settings.turn_factor * std::max(program.swap_cost, waiting.swap_cost));
}

uint64_t HostNeed(const Table& table, uint64_t bytes) {
  uint64_t need = bytes;
  bool whole = false;  // a program leaves other GPUs too than the one on which room is made
  for (const Program& program : table.programs) {
    const auto uses = [](const Memory& memory) {
      return memory.data > 0 || memory.asked > 0 || memory.contexts > 0;
    };
    whole |= std::count_if(program.memory.begin(), program.memory.end(), uses) > 1;
  }
  for (size_t gpu = 0; gpu < table.gpu_bytes.size(); ++gpu) {
    uint64_t data = 0, away = 0, largest = bytes, second = 0, contexts = 0;
    for (const Program& program : table.programs) {
      const Memory& memory = program.memory[gpu];
      const uint64_t size = Sum(memory.data, memory.asked);
      data = Sum(data, size);
      contexts = Sum(contexts, memory.contexts);
      if (std::min(program.state, program.target) != State::kAwake) away = Sum(away, memory.data);
      second = std::max(second, std::min(largest, size));
      largest = std::max(largest, size);
    }
    const uint64_t served = Sum(Sum(contexts, largest), second);
    const uint64_t stays =
        whole ? 0 : table.gpu_bytes[gpu] - std::min(table.gpu_bytes[gpu], served);
    need = Sum(need, std::max(data - std::min(data, stays), away));
  }
  return need;
}

bool HostHasRoom(const Table& table, uint64_t bytes) {
  return HostNeed(table, bytes) <= table.host_bytes;
}

Decision Decide(const Table& table) { return Decider(table).Run(); }

}  // namespace stasis::sharing
