#include "gpu_state/close_gates.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/parallel.h"
#include "gpu_state/agents.h"

namespace stasis::gpu_state {
namespace {

using std::chrono::milliseconds;

// Time limit for the programs to become quiescent without steps. Ordinary work ends within this
// time.
constexpr milliseconds kFirstWait{300};
// Time for a program to become quiescent again after the calls of a step. It grows whenever the set
// of quiescent programs has changed, so that kernels of any length end in some round.
constexpr milliseconds kFirstStep{10}, kLongestStep{3000};
// Length of a round in which no program is quiescent.
constexpr milliseconds kPollRound{50};
// Maximum number of calls that a program may submit in one step. The number is doubled while the
// set of quiescent programs stays the same.
constexpr uint32_t kMostCalls = 256;
// If no program is quiescent for this time, they probably all wait for each other, so all of them
// may submit calls. If the time were shorter, slow programs would submit even more work.
constexpr milliseconds kAllWait{2000};

constexpr milliseconds kLongest = std::chrono::hours(24);

class Steps {
 public:
  Steps(const std::vector<GateOwner>& owners, const Deadline& deadline)
      : owners_(owners),
        deadline_(deadline),
        rests_(owners.size(), false),
        rounds_without_rest_(owners.size(), 0) {}

  Status Run(agent_client::AgentLink::Floor floor) {
    STASIS_TRY(Round(kFirstWait, [&](size_t i, milliseconds time) {
      return owners_[i].agent->CloseInSteps(time, floor);
    }));
    milliseconds time = kFirstStep;
    uint32_t calls = 1;
    Deadline all_wait = Deadline::In(kAllWait);
    while (!AllRest()) {
      if (deadline_.passed()) return Late();
      const std::vector<char> before = rests_;
      const bool none = std::find(before.begin(), before.end(), 1) == before.end();
      const bool all = none && all_wait.passed();
      if (!none || all) all_wait = Deadline::In(kAllWait);
      // A program that may submit calls gets the full `time` to become quiescent again. The work of
      // the others may depend on that program, so each of them gets at most kFirstStep, and does
      // not delay the next step. A round without any quiescent program lasts kPollRound for all.
      STASIS_TRY(Round(none ? kPollRound : time, [&](size_t i, milliseconds span) {
        const bool steps = before[i] != 0 || all;
        return owners_[i].agent->Rest(steps ? calls : 0,
                                      steps || none ? span : std::min(span, kFirstStep));
      }));
      if (rests_ != before) {
        calls = 1;
        time = std::min(time + time / 3, kLongestStep);
      } else if (!none || all) {
        calls = std::min(2 * calls, kMostCalls);
      }
    }
    return {};
  }

 private:
  using Step = std::function<Result<bool>(size_t, milliseconds)>;

  Status Round(milliseconds time, const Step& step) {
    const milliseconds span = TimeLeft(deadline_, time);
    return InParallel(owners_.size(), [&](size_t i) -> Status {
      auto rests = Annotate(step(i, span), owners_[i].who);
      if (!rests) return Fail(std::move(rests).error());
      rests_[i] = *rests ? 1 : 0;
      rounds_without_rest_[i] = *rests ? 0 : rounds_without_rest_[i] + 1;
      return {};
    });
  }

  bool AllRest() const {
    return std::all_of(rests_.begin(), rests_.end(), [](char rests) { return rests != 0; });
  }

  // Names the program whose work has been unfinished for the longest time. The others may only be
  // in the middle of their current step.
  Status Late() const {
    const auto longest = std::max_element(rounds_without_rest_.begin(), rounds_without_rest_.end());
    const GateOwner& owner = owners_[size_t(longest - rounds_without_rest_.begin())];
    return Fail(
        Code::kDeadlineExceeded,
        fmt::format("{}: {}; all programs continue", owner.who, owner.agent->not_yet()),
        "its work may be waiting for a program outside of this operation; if the work is only "
        "slow, use a longer --timeout");
  }

  const std::vector<GateOwner>& owners_;
  const Deadline& deadline_;
  std::vector<char> rests_;  // bool, but written from several threads
  std::vector<uint64_t> rounds_without_rest_;
};

}  // namespace

Status CloseGates(const std::vector<GateOwner>& owners, bool together,
                  agent_client::AgentLink::Floor floor, const Deadline& deadline) {
  together = together && owners.size() > 1 &&
             std::all_of(owners.begin(), owners.end(),
                         [](const GateOwner& owner) { return owner.agent->goes_in_steps(); });
  if (together) return Steps(owners, deadline).Run(floor);
  return InParallel(owners.size(), [&](size_t i) {
    return Annotate(owners[i].agent->Close(TimeLeft(deadline, kLongest), floor), owners[i].who);
  });
}

}  // namespace stasis::gpu_state
