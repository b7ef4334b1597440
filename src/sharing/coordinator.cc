#include "sharing/coordinator.h"

#include <algorithm>

namespace stasis::sharing {
namespace {

// How often an allocation is granted without success.
constexpr int kMostGrants = 8;

bool HasAllocation(const Want& want) { return want.allocation.has_value(); }

uint64_t DataBytes(const Facts& facts) {
  uint64_t bytes = 0;
  for (const auto& [gpu, memory] : facts.memory) bytes += memory.data;
  return bytes;
}

uint64_t OccupiedBytes(const Facts& facts, const std::string& gpu) {
  auto found = facts.memory.find(gpu);
  if (found == facts.memory.end() || facts.state == State::kSuspended) return 0;
  return found->second.contexts + (facts.state == State::kAwake ? found->second.data : 0);
}

}  // namespace

void Coordinator::Apply(const Survey& survey, Time now) {
  std::erase_if(programs_, [&](const auto& entry) {
    return !survey.programs.contains(entry.first) && entry.second.changed <= survey.began;
  });
  for (const auto& [id, facts] : survey.programs) {
    auto [entry, is_new] = programs_.try_emplace(id);
    Program& program = entry->second;
    if (is_new) {
      // Nothing is known of its use yet, so it is not idle.
      program.used_last = program.turn_began = now;
      if (auto earlier = earlier_.find(id); earlier != earlier_.end()) {
        program.pinned = earlier->second.pinned;
        program.by_hand_suspended = earlier->second.suspended_by_hand;
        program.swaps = earlier->second.swaps;
        program.lost = earlier->second.lost;
        earlier_.erase(earlier);
      }
    }
    const bool silent = survey.silent.contains(id);
    if (facts || silent) program.silent = silent;
    if (!facts || program.swapping || survey.began < program.changed) continue;
    program.facts = *facts;
    program.target = facts->state;
    program.known = true;
    if (facts->state == State::kAwake) program.by_hand_suspended = false;
    if (survey.began >= program.granted_at + limits_.grant_takes) program.granted.clear();
    UpdateWanted(id, program, now);
  }
  // While an operation is in progress, its program occupies an unknown part of its memory. One that
  // has never answered counts with nothing, so that the others get less.
  auto all_known = [&](bool or_new) {
    return std::all_of(survey.programs.begin(), survey.programs.end(), [&](const auto& entry) {
      const Program& program = programs_.at(entry.first);
      const bool holds = entry.second || program.silent || (or_new && !program.known);
      return holds && !program.swapping && survey.began >= program.changed;
    });
  };
  const bool settled = all_known(false);
  // Until all are known for the first time, one of which nothing is known counts with nothing too.
  const bool counts = settled || (!settled_ && all_known(true));
  settled_ |= settled;
  if (!first_surveyed_) first_surveyed_ = survey.began;
  for (auto& [gpu, bytes] : gpus_) {
    if (!survey.gpus.contains(gpu)) bytes = 0;  // the GPU has failed
  }
  for (const auto& [uuid, gpu] : survey.gpus) {
    auto [entry, is_new] = gpus_.try_emplace(uuid, 0);
    if (!counts && !is_new && entry->second != 0) continue;
    uint64_t shared = gpu.free_bytes;
    for (const auto& [id, program] : programs_) shared += OccupiedBytes(program.facts, uuid);
    const uint64_t bytes = std::min(shared, gpu.total_bytes);
    const uint64_t spare =
        std::max(MoverBytes(uuid), std::min(limits_.gpu_spare_bytes, gpu.total_bytes / 16));
    entry->second = bytes - std::min(bytes, spare);
  }
  if (counts || memory_bytes_ == 0) {
    // A tenth of the memory is left to everything else.
    const Away away = AwayBytes();
    uint64_t bytes = survey.host_free_bytes + away.memory_bytes;
    // Records that say more are false.
    if (survey.host_total_bytes != 0) bytes = std::min(bytes, survey.host_total_bytes);
    memory_bytes_ = limits_.host_bytes != 0 ? limits_.host_bytes : bytes / 10 * 9;
    spill_bytes_ = survey.spill_free_bytes + away.file_bytes;
  }
  surveyed_ = std::max(surveyed_, survey.began);
}

void Coordinator::SetWant(const std::string& id, uint64_t process, const Want& want, Time now) {
  auto found = programs_.find(id);
  if (found == programs_.end()) return;
  Program& program = found->second;
  EndGrant(program);
  Waiting& waiting = program.waiting[process];
  const bool same = HasAllocation(waiting.want) && HasAllocation(want) &&
                    waiting.want.allocation->number == want.allocation->number;
  // An allocation that is tried again has another number, and nothing waits in between.
  if (HasAllocation(want) && !same && want.allocation->attempts == 0) {
    waiting.allocation_since = now;
    waiting.grants = 0;
  }
  waiting.want = want;
  UpdateWanted(id, program, now);
  if (HasAllocation(want)) {
    needed_ = std::max(needed_, now);
  } else if (program.wanted_since) {
    needed_ = std::max(needed_, now - limits_.fresh);
  }
}

void Coordinator::Disconnected(const std::string& id, uint64_t process) {
  auto found = programs_.find(id);
  if (found == programs_.end()) return;
  found->second.waiting.erase(process);
  UpdateWanted(id, found->second, Time{0});
}

void Coordinator::SetUsed(const std::string& id, Time last_use) {
  auto found = programs_.find(id);
  if (found == programs_.end()) return;
  found->second.used_last = std::max(found->second.used_last, last_use);
}

void Coordinator::SwapEnded(const std::string& id, const SwapResult& result, Time now) {
  auto found = programs_.find(id);
  if (found == programs_.end()) return;
  Program& program = found->second;
  const bool resumed = program.target == State::kAwake;
  program.swapping = false;
  program.changed = now;
  if (result.ok) {
    // No survey is needed: a program changes nothing while its gate is closed.
    program.facts.state = program.target;
    if (resumed) program.facts.spilled_bytes = 0;
    if (program.spills) program.facts.spilled_bytes = DataBytes(program.facts);
    program.spills = false;
    program.failures_in_row = 0;
    program.problem.clear();
    program.swaps += resumed ? 0 : 1;
    program.lost += result.took;
    (resumed ? program.resume_cost : program.suspend_cost) = result.took;
    if (resumed) {
      program.turn_began = program.used_last = now;
      program.promised = false;
      for (auto& [process, waiting] : program.waiting) waiting.want.at_gate = false;
    }
  } else {
    needed_ = std::max(needed_, now);
    program.target = program.facts.state;
    program.spills = false;
    program.problem = result.problem;
    for (auto& [other_id, other] : programs_) other.promised &= other_id == id;
    if (!result.busy) {
      ++program.failures;
      ++program.failures_in_row;
    }
    const auto doublings =
        std::min<uint64_t>(program.failures_in_row == 0 ? 0 : program.failures_in_row - 1, 16);
    const Time hold = std::min(limits_.longest_hold, limits_.first_hold * (1 << doublings));
    program.held_until = now + hold;
  }
  UpdateWanted(id, program, now);
}

bool Coordinator::Pin(const std::string& id, bool pinned) {
  auto found = programs_.find(id);
  if (found == programs_.end()) return false;
  found->second.pinned = pinned;
  return true;
}

bool Coordinator::Waits(const std::string& id, const Program& program) const {
  const bool asleep = program.facts.state != State::kAwake;
  if (asleep && HandWaits(id, Hand::kResume)) return true;
  return std::any_of(program.waiting.begin(), program.waiting.end(), [&](const auto& entry) {
    return HasAllocation(entry.second.want) || (asleep && entry.second.want.at_gate);
  });
}

void Coordinator::UpdateWanted(const std::string& id, Program& program, Time now) {
  if (!Waits(id, program)) {
    program.wanted_since.reset();
    program.promised = false;
  } else if (!program.wanted_since) {
    program.wanted_since = now;
  }
}

// The process that copies the data needs a context too, as small as the smallest of a program.
uint64_t Coordinator::MoverBytes(const std::string& gpu) const {
  uint64_t least = 0;
  for (const auto& [id, program] : programs_) {
    auto memory = program.facts.memory.find(gpu);
    if (memory == program.facts.memory.end() || memory->second.contexts == 0) continue;
    least = least == 0 ? memory->second.contexts : std::min(least, memory->second.contexts);
  }
  return least;
}

Coordinator::Away Coordinator::AwayBytes() const {
  Away away;
  for (const auto& [id, program] : programs_) {
    if (std::min(program.facts.state, program.target) == State::kAwake) continue;
    const uint64_t bytes = DataBytes(program.facts);
    const uint64_t in_files = program.spills ? bytes : std::min(bytes, program.facts.spilled_bytes);
    away.file_bytes += in_files;
    away.memory_bytes += bytes - in_files;
  }
  return away;
}

bool Coordinator::FitsInMemory(const Program& program) const {
  return AwayBytes().memory_bytes + DataBytes(program.facts) <= memory_bytes_;
}

// The process has used the grant, or has failed to; the next survey tells.
void Coordinator::EndGrant(Program& program) {
  for (const auto& [gpu, bytes] : program.granted) program.facts.memory[gpu].data += bytes;
  program.granted.clear();
}

bool Coordinator::AnyWaits() const {
  return std::any_of(programs_.begin(), programs_.end(),
                     [](const auto& entry) { return entry.second.wanted_since.has_value(); });
}

bool Coordinator::MayRefuse() const {
  return settled_ || (first_surveyed_ && surveyed_ >= *first_surveyed_ + limits_.settles);
}

bool Coordinator::HasHostRoom(uint64_t bytes) const {
  // Without a survey, nothing can be said.
  return surveyed_ == Time::min() || HostHasRoom(MakeTable(Time{0}, false), bytes);
}

void Coordinator::Answer(Plan& plan, const std::string& id, bool try_again) {
  Program& program = programs_.at(id);
  for (auto& [process, waiting] : program.waiting) {
    if (!HasAllocation(waiting.want)) continue;
    const Allocation& allocation = *waiting.want.allocation;
    if (try_again) {
      program.granted[allocation.gpu] += allocation.bytes;
      ++waiting.grants;
    }
    plan.answers.push_back({id, process, allocation.number, try_again});
    waiting.want.allocation.reset();
  }
}

void Coordinator::ExpireAllocations(Plan& plan, Time now) {
  for (auto& [id, program] : programs_) {
    for (auto& [process, waiting] : program.waiting) {
      if (!HasAllocation(waiting.want)) continue;
      const Time until = waiting.allocation_since + limits_.max_wait;
      // The driver may have no room although it counts enough free bytes.
      if (now < until && waiting.grants < kMostGrants) {
        plan.look_again = std::min(plan.look_again.value_or(until), until);
        continue;
      }
      plan.answers.push_back({id, process, waiting.want.allocation->number, false});
      waiting.want.allocation.reset();
      program.problem = waiting.grants < kMostGrants
                            ? "an allocation has waited for share.max_wait and failed"
                            : "an allocation has failed although its memory was free";
      waiting.grants = 0;
    }
    UpdateWanted(id, program, now);
  }
}

Table Coordinator::MakeTable(Time now, bool hopeful) const {
  Table table;
  table.settings = limits_.policy;
  table.now = now;
  table.host_bytes = memory_bytes_ + spill_bytes_;
  for (const auto& [gpu, bytes] : gpus_) table.gpu_bytes.push_back(bytes);
  for (const auto& [id, program] : programs_) {
    sharing::Program row;
    row.id = id;
    row.user = program.facts.user;
    row.share_class = program.facts.share_class;
    row.state = program.facts.state;
    row.target = IsResumedByHand(id) ? State::kAwake : program.target;
    const bool in_way = !program.known || program.silent || InHand(id) ||
                        now < program.held_until || HandWaits(id, Hand::kOther) ||
                        HandWaits(id, Hand::kSuspend);
    // Only its owner's files could take its data.
    const bool no_room =
        !program.facts.can_spill && program.facts.state == State::kAwake && !FitsInMemory(program);
    row.pinned =
        program.pinned || no_room || !program.facts.obstacle.empty() || (in_way && !hopeful);
    // An allocation of a program that cannot be suspended for a while can still be served.
    const bool held = now < program.held_until && program.facts.state == State::kAwake;
    if (!in_way || held || hopeful) row.wanted_since = program.wanted_since;
    if (program.by_hand_suspended) row.by_hand = ByHand::kSuspend;
    if (HandWaits(id, Hand::kResume)) row.by_hand = ByHand::kResume;
    row.promised = program.promised;
    row.granted = !program.granted.empty();
    row.used_last = program.used_last;
    row.turn_began = program.turn_began;
    row.swap_cost = program.suspend_cost + program.resume_cost;
    for (const auto& [gpu, bytes] : gpus_) {
      auto found = program.facts.memory.find(gpu);
      Memory memory = found == program.facts.memory.end() ? Memory{} : found->second;
      memory.asked = 0;
      if (auto granted = program.granted.find(gpu); granted != program.granted.end()) {
        memory.asked += granted->second;
      }
      for (const auto& [process, waiting] : program.waiting) {
        if (!row.granted && HasAllocation(waiting.want) && waiting.want.allocation->gpu == gpu) {
          memory.asked += waiting.want.allocation->bytes;
        }
      }
      row.memory.push_back(memory);
    }
    table.programs.push_back(std::move(row));
  }
  return table;
}

void Coordinator::Start(Plan& plan, const Action& action, Time now) {
  Program& program = programs_.at(action.id);
  if (action.kind == Action::Kind::kGrant) {
    Answer(plan, action.id, true);
    program.granted_at = program.changed = program.turn_began = now;
    program.promised = false;
    UpdateWanted(action.id, program, now);
    return;
  }
  if (action.kind == Action::Kind::kResume && HandWaits(action.id, Hand::kResume)) {
    return ReleaseResume(plan, action.id);
  }
  // Counted before the program is marked as leaving.
  const bool spill =
      program.facts.can_spill && program.facts.state == State::kAwake && !FitsInMemory(program);
  program.target = action.kind == Action::Kind::kResume        ? State::kAwake
                   : action.kind == Action::Kind::kSuspendData ? State::kContextKept
                                                               : State::kSuspended;
  program.swapping = true;
  program.spills = spill;
  program.changed = program.swap_began = now;
  if (!action.for_id.empty()) programs_.at(action.for_id).promised = true;
  plan.swaps.push_back({action.id, action.kind, action.for_id, spill});
}

void Coordinator::Refuse(Plan& plan, const Refusal& refusal, Time now) {
  Program& program = programs_.at(refusal.id);
  program.problem = refusal.reason == Refusal::Reason::kGpuMemory
                        ? "it does not fit on the GPU, even if all that may leave do"
                        : "host memory does not suffice for what would have to leave";
  Answer(plan, refusal.id, false);
  ReleaseResume(plan, refusal.id);
  UpdateWanted(refusal.id, program, now);
}

Plan Coordinator::Next(Time now) {
  Plan plan;
  ExpireAllocations(plan, now);
  Release(plan, now);
  for (const auto& [token, hand] : hands_) {
    if (hand.released || hand.hand != Hand::kResume) continue;
    const Time until = hand.since + limits_.max_wait;
    // It may be over while a swap of the program is in progress.
    if (until > now) plan.look_again = std::min(plan.look_again.value_or(until), until);
  }
  // No event tells that an operation has ended that this daemon did not begin.
  const bool any_unknown = std::any_of(programs_.begin(), programs_.end(), [](const auto& entry) {
    return !entry.second.known && !entry.second.silent;
  });
  if (!AnyWaits()) {
    const Time time = surveyed_ + limits_.stale;
    if (any_unknown && time <= now) plan.survey = true;
    if (any_unknown && time > now) plan.look_again = std::min(plan.look_again.value_or(time), time);
    return plan;
  }
  if (surveyed_ != Time::min() && surveyed_ + limits_.stale <= now) {
    needed_ = std::max(needed_, surveyed_ + limits_.stale);
  }
  plan.survey = surveyed_ < needed_;
  if (plan.survey) return plan;
  const Table table = MakeTable(now, false);
  const Decision decision = Decide(table);
  if (!decision.refusals.empty() && MayRefuse()) {
    // A program that is only held back for a while may still leave.
    const Decision hopeful = Decide(MakeTable(now, true));
    for (const Refusal& refusal : decision.refusals) {
      const bool hopeless =
          std::any_of(hopeful.refusals.begin(), hopeful.refusals.end(),
                      [&](const Refusal& other) { return other.id == refusal.id; });
      if (hopeless) Refuse(plan, refusal, now);
    }
  }
  for (const Action& action : decision.actions) Start(plan, action, now);
  auto look_again_at = [&](Time time) {
    if (time > now) plan.look_again = std::min(plan.look_again.value_or(time), time);
  };
  if (decision.look_again) look_again_at(*decision.look_again);
  look_again_at(surveyed_ + limits_.stale);
  for (const auto& [id, program] : programs_) {
    look_again_at(program.held_until);
    if (!program.granted.empty()) look_again_at(program.granted_at + limits_.grant_takes);
  }
  return plan;
}

std::vector<View> Coordinator::Show() const {
  std::vector<View> views;
  for (const auto& [id, program] : programs_) {
    View view;
    view.id = id;
    view.facts = program.facts;
    view.known = program.known;
    view.target = program.target;
    view.wanted_since = program.wanted_since;
    for (const auto& [process, waiting] : program.waiting) {
      view.at_gate |= waiting.want.at_gate && program.facts.state != State::kAwake;
      if (HasAllocation(waiting.want)) view.asked_bytes += waiting.want.allocation->bytes;
    }
    view.saved = {program.pinned, program.by_hand_suspended, program.swaps, program.lost};
    view.problem = program.silent ? "it does not answer, so it is left as it is" : program.problem;
    view.failures = program.failures;
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace stasis::sharing
