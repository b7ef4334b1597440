// A model of pushes, gcs and a deletion in one repository, and a checker that tries every
// interleaving of their requests and kills a process before each request. push.h and gc.h use the
// same names for the same steps; docs/format/repository.md explains each step.
//
// The model has an old image, which needs the old pack. A push uploads one pack with data of its
// own. It either relies on the old pack or includes a copy of its data. A pack and the index of its
// push are different objects, because they are listed and deleted at different times.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace stasis::repository::model {

// The rule of the protocol that the model leaves out.
enum class Without : uint8_t {
  kNothing,              // the whole protocol
  kPending,              // a push writes no pending record
  kAskCondemned,         // a push does not ask what is condemned
  kAskPresent,           // a push does not ask whether its objects are there
  kAskInOrder,           // a push asks what is there before it asks what is condemned
  kPendingUntilPublish,  // a push removes its pending record before the image is visible
  kCondemn,              // a gc does not record what it condemns
  kSecondLook,           // a gc does not look for references again after it has condemned
  kPendingFirst,         // a gc reads images before pending records
  kOwnRecordOnly,        // a gc removes the records of running gcs, too
  kPatience,             // a gc removes the pending records of running pushes, too
};

using Objects = uint16_t;  // a set: one bit for each object
inline constexpr Objects kPacks = 0x5555, kIndexes = 0xaaaa;
inline constexpr Objects kOld = 3;
// The pack and the index that a push writes. A push has two ids; it uses the second one for its
// repair.
constexpr Objects Own(size_t push, unsigned round) {
  return static_cast<Objects>(12u << (4 * push + 2 * round));
}

enum Step : uint8_t {
  // Steps of a push:
  kLook,
  kWritePending,
  kPutPacks,
  kPutIndex,
  kListCondemned,
  kReadCondemned,
  kListPacks,
  kListIndexes,
  kPublish,
  kRemovePending,
  // Steps of a gc:
  kGcListPacks,
  kGcListIndexes,
  kGcFirstLook,
  kGcCondemn,
  kGcListPending,
  kGcReadPending,
  kGcReadImages,
  kGcDelete,
  kGcRemoveRecord,
  // The step of a deletion:
  kDeleteImage,
  kDone,
  kDead,
};
inline constexpr const char* kStepNames[] = {"look",
                                             "write pending",
                                             "put packs",
                                             "put index",
                                             "list condemned",
                                             "read condemned",
                                             "list packs",
                                             "list indexes",
                                             "publish",
                                             "remove pending",
                                             "list packs",
                                             "list indexes",
                                             "look for references",
                                             "condemn",
                                             "list pending",
                                             "read pending",
                                             "read images",
                                             "delete",
                                             "remove record",
                                             "delete the old image"};

struct Push {
  Step at = kLook;
  uint8_t round = 0;
  uint8_t seen_records = 0;  // one bit for each gc
  uint8_t unused = 0;
  Objects needed = 0;
  Objects lost = 0;
};
struct Gc {
  Step at = kGcListPacks;
  uint8_t seen_pending = 0;  // one bit for each push
  Objects condemned = 0;
};
inline constexpr size_t kMost = 2;  // pushes, and gcs

struct State {
  Objects objects = kOld;
  Objects old_image = kOld;
  std::array<Objects, kMost> pending{};
  std::array<Objects, kMost> images{};
  std::array<Objects, kMost> records{};
  std::array<Push, kMost> pushes{};
  std::array<Gc, kMost> gcs{};
  Step deletion = kDone;
  uint8_t unused = 0;

  std::string_view Bytes() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
  bool operator==(const State& other) const { return Bytes() == other.Bytes(); }
};
static_assert(std::has_unique_object_representations_v<State>);

struct Actors {
  size_t pushes = 1;
  size_t gcs = 1;
  bool deletion = true;
  // Merges adjacent lists and reads of an actor into one step, which makes larger cases feasible.
  bool coarse = false;
};

struct Verdict {
  uint64_t states = 0;
  std::vector<std::string> trace;  // of the first violation; empty: the invariant holds
  bool holds() const { return trace.empty(); }
};

class Checker {
 public:
  Checker(const Actors& actors, Without without) : actors_(actors), without_(without) {}

  // Explores all states. The invariant: every visible image has all its objects.
  Verdict Run() {
    State start;
    for (size_t i = actors_.pushes; i < kMost; ++i) start.pushes[i].at = kDone;
    for (size_t i = actors_.gcs; i < kMost; ++i) start.gcs[i].at = kDone;
    if (actors_.deletion) start.deletion = kDeleteImage;
    table_.assign(1 << 12, kNone);
    Reach(start, "");
    for (current_ = 0; current_ < nodes_.size(); ++current_) {
      if (IsBroken(nodes_[current_].state)) return {nodes_.size(), TraceOf(current_)};
      const State state = nodes_[current_].state;
      for (size_t i = 0; i < kMost; ++i) StepPush(state, i);
      for (size_t i = 0; i < kMost; ++i) StepGc(state, i);
      if (state.deletion == kDeleteImage) {
        State next = state;
        next.old_image = 0;
        next.deletion = kDone;
        Reach(next, kStepNames[kDeleteImage]);
      }
    }
    return {nodes_.size(), {}};
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Node {
    State state;
    uint32_t before;
    const char* step;
    uint8_t actor;
  };

  static bool Ended(Step step) { return step == kDone || step == kDead; }
  static bool IsBroken(const State& state) {
    const Objects needed =
        static_cast<Objects>(state.old_image | state.images[0] | state.images[1]);
    return (needed & ~state.objects) != 0;
  }
  static Objects Referenced(const State& state) {
    return static_cast<Objects>(state.old_image | state.images[0] | state.images[1] |
                                state.pending[0] | state.pending[1]);
  }

  // Adds a state unless it was reached before.
  void Reach(const State& state, const char* step, uint8_t actor = 9) {
    if (nodes_.size() * 2 >= table_.size()) Grow();
    uint32_t& slot = Slot(state);
    if (slot != kNone) return;
    slot = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({state, current_, step, actor});
  }
  uint32_t& Slot(const State& state) {
    size_t at = std::hash<std::string_view>()(state.Bytes()) & (table_.size() - 1);
    while (table_[at] != kNone && !(nodes_[table_[at]].state == state)) {
      at = (at + 1) & (table_.size() - 1);
    }
    return table_[at];
  }
  void Grow() {
    table_.assign(table_.size() * 4, kNone);
    for (uint32_t i = 0; i < nodes_.size(); ++i) Slot(nodes_[i].state) = i;
  }
  std::vector<std::string> TraceOf(uint32_t node) const {
    std::vector<std::string> trace;
    for (; node != 0; node = nodes_[node].before) {
      const char* const names[] = {"push A: ", "push B: ", "gc 1: ", "gc 2: "};
      const uint8_t actor = nodes_[node].actor;
      trace.insert(trace.begin(), (actor < 4 ? names[actor] : "") + std::string(nodes_[node].step));
    }
    return trace;
  }

  void StepPush(const State& state, size_t me) {
    const Push& push = state.pushes[me];
    if (Ended(push.at)) return;
    const auto actor = static_cast<uint8_t>(me);
    State next = state;
    next.pushes[me] = {};
    next.pushes[me].at = kDead;
    Reach(next, "dies", actor);
    if (push.at == kLook) {
      LookForOldPack(state, me);
      return;
    }
    next = state;
    AdvancePush(next, me);
    Reach(next, kStepNames[push.at], actor);
  }

  // A push may upload its own copy even if it could rely on the old pack.
  void LookForOldPack(const State& state, size_t me) {
    State next = state;
    next.pushes[me].needed = Own(me, 0);
    next.pushes[me].at = without_ == Without::kPending ? kPutPacks : kWritePending;
    Reach(next, "relies on nothing", static_cast<uint8_t>(me));
    if ((state.objects & kOld) != kOld || ((state.records[0] | state.records[1]) & kOld) != 0) {
      return;
    }
    next.pushes[me].needed |= kOld;
    Reach(next, "relies on the old pack", static_cast<uint8_t>(me));
  }

  void AdvancePush(State& state, size_t me) {
    Push& push = state.pushes[me];
    switch (push.at) {
      case kWritePending:
        state.pending[me] = push.needed;
        push.at = kPutPacks;
        break;
      case kPutPacks:
        state.objects |= Own(me, push.round) & kPacks;
        push.at = kPutIndex;
        break;
      case kPutIndex:
        state.objects |= Own(me, push.round) & kIndexes;
        push.at = without_ == Without::kAskCondemned || without_ == Without::kAskInOrder
                      ? kListPacks
                      : kListCondemned;
        break;
      case kListCondemned:
        for (size_t gc = 0; gc < kMost; ++gc) {
          push.seen_records |= static_cast<uint8_t>(state.records[gc] != 0 ? 1 << gc : 0);
        }
        push.at = kReadCondemned;
        if (actors_.coarse) AdvancePush(state, me);
        break;
      case kReadCondemned:
        for (size_t gc = 0; gc < kMost; ++gc) {
          if ((push.seen_records >> gc & 1) != 0) push.lost |= push.needed & state.records[gc];
        }
        push.seen_records = 0;
        push.at = without_ == Without::kAskPresent || without_ == Without::kAskInOrder ? kPublish
                                                                                       : kListPacks;
        if (push.at == kPublish) DecideToPublish(state, me);
        break;
      case kListPacks:
        push.lost |= push.needed & kPacks & ~state.objects;
        push.at = kListIndexes;
        if (actors_.coarse) AdvancePush(state, me);
        break;
      case kListIndexes:
        push.lost |= push.needed & kIndexes & ~state.objects;
        push.at = kPublish;
        if (without_ == Without::kAskInOrder) {
          push.at = kListCondemned;
        } else {
          DecideToPublish(state, me);
        }
        break;
      case kPublish:
        state.images[me] = push.needed;
        push.at = without_ == Without::kPendingUntilPublish ? kDone : kRemovePending;
        if (push.at == kDone) push = {kDone};
        break;
      default:  // kRemovePending
        state.pending[me] = 0;
        if (without_ == Without::kPendingUntilPublish && push.needed != 0) {
          push.at = kPublish;
        } else {
          push = {kDone};
        }
    }
  }

  // Publishes if nothing is lost. Otherwise repairs once, under new names, or gives up.
  void DecideToPublish(State& state, size_t me) {
    Push& push = state.pushes[me];
    if (push.lost == 0) {
      if (without_ == Without::kPendingUntilPublish) push.at = kRemovePending;
      return;
    }
    if (push.round == 1) {
      push = {kRemovePending};
      return;
    }
    push.round = 1;
    push.at = without_ == Without::kPending ? kPutPacks : kWritePending;
    for (const Objects part : {kOld, Own(me, 0)}) {
      if ((push.lost & part) != 0) push.needed &= static_cast<Objects>(~part);
    }
    push.needed |= Own(me, 1);
    push.lost = 0;
  }

  void StepGc(const State& state, size_t me) {
    const Gc& gc = state.gcs[me];
    if (Ended(gc.at)) return;
    const auto actor = static_cast<uint8_t>(kMost + me);
    State next = state;
    next.gcs[me] = {kDead};
    Reach(next, "dies", actor);
    if (gc.at == kGcListPacks) RemoveAbandoned(state, me);
    next = state;
    AdvanceGc(next, me);
    Reach(next, kStepNames[gc.at], actor);
  }

  // Removes the records of killed processes. The real gc recognises them by their age.
  void RemoveAbandoned(const State& state, size_t me) {
    for (size_t i = 0; i < kMost; ++i) {
      State next = state;
      if (state.pushes[i].at == kDead || without_ == Without::kPatience) {
        next.pending[i] = 0;
        Reach(next, "remove an abandoned pending record", static_cast<uint8_t>(kMost + me));
      }
      next = state;
      if (i != me && (state.gcs[i].at == kDead || without_ == Without::kOwnRecordOnly)) {
        next.records[i] = 0;
        Reach(next, "remove an abandoned record of a gc", static_cast<uint8_t>(kMost + me));
      }
    }
  }

  void AdvanceGc(State& state, size_t me) {
    Gc& gc = state.gcs[me];
    switch (gc.at) {
      case kGcListPacks:
        gc.condemned = state.objects & kPacks;
        gc.at = kGcListIndexes;
        if (actors_.coarse) AdvanceGc(state, me);
        break;
      case kGcListIndexes:
        gc.condemned |= state.objects & kIndexes;
        gc.at = kGcFirstLook;
        break;
      case kGcFirstLook:
        gc.condemned &= static_cast<Objects>(~Referenced(state));
        gc.at = kGcCondemn;
        if (gc.condemned == 0) gc = {kDone};
        break;
      case kGcCondemn:
        if (without_ != Without::kCondemn) state.records[me] = gc.condemned;
        gc.at = without_ == Without::kPendingFirst ? kGcReadImages : kGcListPending;
        if (without_ == Without::kSecondLook) gc.at = kGcDelete;
        break;
      case kGcListPending:
        for (size_t push = 0; push < kMost; ++push) {
          gc.seen_pending |= static_cast<uint8_t>(state.pending[push] != 0 ? 1 << push : 0);
        }
        gc.at = kGcReadPending;
        if (actors_.coarse) AdvanceGc(state, me);
        break;
      case kGcReadPending:
        for (size_t push = 0; push < kMost; ++push) {
          if ((gc.seen_pending >> push & 1) != 0) {
            gc.condemned &= static_cast<Objects>(~state.pending[push]);
          }
        }
        gc.seen_pending = 0;
        gc.at = without_ == Without::kPendingFirst ? kGcDelete : kGcReadImages;
        break;
      case kGcReadImages:
        gc.condemned &=
            static_cast<Objects>(~(state.old_image | state.images[0] | state.images[1]));
        gc.at = without_ == Without::kPendingFirst ? kGcListPending : kGcDelete;
        break;
      case kGcDelete:
        if (gc.condemned == 0) {
          gc.at = kGcRemoveRecord;
        } else {
          const auto rest = static_cast<Objects>(gc.condemned & (gc.condemned - 1));
          state.objects &= static_cast<Objects>(~(gc.condemned ^ rest));
          gc.condemned = rest;
        }
        break;
      default:  // kGcRemoveRecord
        state.records[me] = 0;
        gc = {kDone};
    }
  }

  const Actors actors_;
  const Without without_;
  uint32_t current_ = 0;
  std::vector<Node> nodes_;
  std::vector<uint32_t> table_;  // indexes into nodes_, by hash
};

}  // namespace stasis::repository::model
