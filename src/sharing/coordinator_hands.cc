// The operations by hand.
#include <algorithm>

#include "sharing/coordinator.h"

namespace stasis::sharing {

void Coordinator::HandBegan(uint64_t token, const std::string& id, Hand hand, Time now) {
  hands_[token] = {id, hand, now};
  auto found = programs_.find(id);
  if (found == programs_.end()) return;
  if (hand == Hand::kResume) found->second.by_hand_suspended = false;
  UpdateWanted(id, found->second, now);
  if (found->second.wanted_since) needed_ = std::max(needed_, now);
}

void Coordinator::HandEnded(uint64_t token, bool ok, Time now) {
  auto hand = hands_.find(token);
  if (hand == hands_.end()) return;
  const HandOperation ended = hand->second;
  hands_.erase(hand);
  auto found = programs_.find(ended.id);
  if (found == programs_.end()) return;
  Program& program = found->second;
  program.changed = now;
  needed_ = std::max(needed_, now);
  if (ok && ended.hand == Hand::kSuspend) {
    program.by_hand_suspended = true;
    // Until the next survey. Contexts that are still there are found by it.
    program.facts.state = program.target = State::kSuspended;
  }
  if (ok && ended.hand == Hand::kResume) {
    program.facts.state = program.target = State::kAwake;
    program.facts.spilled_bytes = 0;
    program.turn_began = program.used_last = now;
    program.held_until = Time{0};
    for (auto& [process, waiting] : program.waiting) waiting.want.at_gate = false;
  }
  UpdateWanted(ended.id, program, now);
}

bool Coordinator::HandWaits(const std::string& id, Hand hand) const {
  return std::any_of(hands_.begin(), hands_.end(), [&](const auto& entry) {
    return entry.second.id == id && entry.second.hand == hand && !entry.second.released;
  });
}

// Its memory is reserved until the operation has ended.
bool Coordinator::IsResumedByHand(const std::string& id) const {
  return std::any_of(hands_.begin(), hands_.end(), [&](const auto& entry) {
    return entry.second.id == id && entry.second.hand == Hand::kResume && entry.second.released;
  });
}

bool Coordinator::InHand(const std::string& id) const {
  return std::any_of(hands_.begin(), hands_.end(), [&](const auto& entry) {
    return entry.second.id == id && entry.second.released;
  });
}

void Coordinator::Release(Plan& plan, Time now) {
  for (auto& [token, hand] : hands_) {
    if (hand.released) continue;
    auto found = programs_.find(hand.id);
    const bool swapping = found != programs_.end() && found->second.swapping;
    const bool needs_room = found != programs_.end() && hand.hand == Hand::kResume &&
                            found->second.facts.state != State::kAwake &&
                            now < hand.since + limits_.max_wait;
    if (swapping || needs_room) continue;
    hand.released = true;
    plan.released.push_back(token);
  }
}

// Lets the user's own resume take the room.
void Coordinator::ReleaseResume(Plan& plan, const std::string& id) {
  for (auto& [token, hand] : hands_) {
    if (hand.id != id || hand.hand != Hand::kResume || hand.released) continue;
    hand.released = true;
    plan.released.push_back(token);
  }
}

}  // namespace stasis::sharing
