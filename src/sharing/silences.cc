#include "sharing/silences.h"

#include <algorithm>

namespace stasis::sharing {
namespace {

constexpr int kMostSilenceDoublings = 16;

}  // namespace

std::set<std::string> Silences::Lasting() const {
  std::set<std::string> ids;
  for (const auto& [id, silence] : silences_) {
    if (silence.lasts) ids.insert(id);
  }
  return ids;
}

std::set<std::string> Silences::Note(const std::set<std::string>& not_asked,
                                     const std::set<std::string>& silent, Time now) {
  std::erase_if(silences_, [&](const auto& entry) {
    return !silent.contains(entry.first) && now >= entry.second.ask_at + kLongest;
  });
  std::set<std::string> begun;
  for (const std::string& id : silent) {
    if (not_asked.contains(id)) continue;
    Silence& silence = silences_[id];
    silence.lasts = true;
    silence.since = now;
    const int doublings = std::min(silence.times++, kMostSilenceDoublings);
    silence.ask_at = now + std::min(kLongest, kFirst * (1 << doublings));
    begun.insert(id);
  }
  return begun;
}

void Silences::Forget(const std::function<bool(const std::string& id)>& lives) {
  std::erase_if(silences_, [&](const auto& entry) { return !lives(entry.first); });
}

Silences::Ended Silences::End(const HasAnswered& has_answered, Time now) {
  Ended ended;
  for (auto& [id, silence] : silences_) {
    if (!silence.lasts) continue;
    const std::optional<bool> answered = has_answered(id, silence.since);
    if (answered && !*answered) continue;  // the answer is an event
    const Time ask_at = answered ? silence.ask_at : silence.since + kLongest;
    if (now >= ask_at) {
      silence.lasts = false;
      ended.any = true;
    } else {
      ended.next = std::min(ask_at, ended.next.value_or(ask_at));
    }
  }
  return ended;
}

}  // namespace stasis::sharing
