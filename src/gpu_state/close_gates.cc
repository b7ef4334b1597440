#include "gpu_state/close_gates.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/parallel.h"

namespace stasis::gpu_state {
namespace {

using std::chrono::milliseconds;

// Ordinary work ends in that time, and nobody is disturbed while it does.
constexpr milliseconds kUndisturbed{300};
// What a step's work gets to end: longer each time that others are the ones who wait, so that
// kernels of any length end in some round.
constexpr milliseconds kFirstStep{10}, kLongestStep{3000};
// How long a round takes in which all are waited for.
constexpr milliseconds kNobody{50};
// Calls of a step: doubled while the same programs are behind the others.
constexpr uint32_t kMostCalls = 256;
// So long nobody rests before it is taken that all wait for each other: those who are only slow
// would be given more to do.
constexpr milliseconds kAllWait{2000};

constexpr milliseconds kLongest = std::chrono::hours(24);

milliseconds Left(const Deadline& deadline, milliseconds most) {
  if (deadline.never()) return most;
  return std::min(most, milliseconds(deadline.PollTimeout()));
}

class Steps {
 public:
  Steps(const std::vector<GateOwner>& owners, const Deadline& deadline)
      : owners_(owners), deadline_(deadline), rests_(owners.size(), false) {}

  Status Run(agent_client::AgentClient::Floor floor) {
    STASIS_TRY(Round(kUndisturbed, [&](size_t i, milliseconds time) {
      return owners_[i].client->CloseInSteps(time, floor);
    }));
    milliseconds time = kFirstStep;
    uint32_t calls = 1;
    Deadline all_wait = Deadline::In(kAllWait);
    while (!AllRest()) {
      if (deadline_.passed()) return Late();
      const std::vector<char> before = rests_;
      const bool nobody = std::find(before.begin(), before.end(), 1) == before.end();
      const bool all = nobody && all_wait.passed();
      if (!nobody || all) all_wait = Deadline::In(kAllWait);
      // Those who are stepped have time to rest again. Those who wait for them are asked at once,
      // so that the next step does not wait.
      STASIS_TRY(Round(nobody ? kNobody : time, [&](size_t i, milliseconds span) {
        const bool steps = before[i] != 0 || all;
        return owners_[i].client->Rest(steps ? calls : 0,
                                       steps || nobody ? span : std::min(span, kFirstStep));
      }));
      if (rests_ != before) {
        calls = 1;
        time = std::min(time + time / 3, kLongestStep);
      } else if (!nobody || all) {
        calls = std::min(2 * calls, kMostCalls);
      }
    }
    return {};
  }

 private:
  using Step = std::function<Result<bool>(size_t, milliseconds)>;

  Status Round(milliseconds time, const Step& step) {
    const milliseconds span = Left(deadline_, time);
    return InParallel(owners_.size(), [&](size_t i) -> Status {
      auto rests = Annotate(step(i, span), owners_[i].who);
      if (!rests) return Fail(std::move(rests).error());
      rests_[i] = *rests ? 1 : 0;
      return {};
    });
  }

  bool AllRest() const {
    return std::all_of(rests_.begin(), rests_.end(), [](char rests) { return rests != 0; });
  }

  Status Late() const {
    const auto first = size_t(std::find(rests_.begin(), rests_.end(), 0) - rests_.begin());
    return Fail(
        Code::kDeadlineExceeded,
        fmt::format("{}: {}; all run on", owners_[first].who, owners_[first].client->not_yet()),
        "its work may wait for a program that is no part of this; a longer --timeout gives "
        "work that is only slow the time to end");
  }

  const std::vector<GateOwner>& owners_;
  const Deadline& deadline_;
  std::vector<char> rests_;  // bool, but written from several threads
};

}  // namespace

Status CloseGates(const std::vector<GateOwner>& owners, bool together,
                  agent_client::AgentClient::Floor floor, const Deadline& deadline) {
  together = together && owners.size() > 1 &&
             std::all_of(owners.begin(), owners.end(),
                         [](const GateOwner& owner) { return owner.client->goes_in_steps(); });
  if (together) return Steps(owners, deadline).Run(floor);
  return InParallel(owners.size(), [&](size_t i) {
    return Annotate(owners[i].client->Close(Left(deadline, kLongest), floor), owners[i].who);
  });
}

}  // namespace stasis::gpu_state
