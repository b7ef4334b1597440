// Turns events about programs that share GPUs into tables for the policy, and the policy's
// decisions into swaps to start and answers to give. No clock, no thread, no I/O: the owner passes
// the time, and carries out what Next() returns. Not thread-safe.
//
// A program is known by a name that its owner chooses. Facts about programs come from surveys.
// A survey that began before the last change of a program says nothing about that program, and a
// decision is made only from a survey that began after the last event.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sharing/policy.h"

namespace stasis::sharing {

// An allocation that failed for lack of GPU memory and waits for an answer.
struct Allocation {
  uint64_t number = 0;  // identifies it in the answer
  uint64_t bytes = 0;
  std::string gpu;
  uint32_t attempts = 0;  // how often it was tried again after an answer, and failed
};

// What one process of a program waits for.
struct Want {
  bool at_gate = false;
  std::optional<Allocation> allocation;
};

// A program as its processes, its agents and the records of suspends show it.
struct Facts {
  uint32_t user = 0;  // uid
  Class share_class = Class::kInteractive;
  State state = State::kAwake;
  std::map<std::string, Memory> memory;  // by GPU; `asked` is not used
  std::string obstacle;                  // why it cannot be suspended; empty if it can
  bool can_spill = false;                // its data may go to files when host memory is used up
  uint64_t spilled_bytes = 0;            // the part of its data that is in files
};

struct Survey {
  struct Gpu {
    uint64_t total_bytes = 0;
    uint64_t free_bytes = 0;
  };
  Time began{0};
  std::map<std::string, Gpu> gpus;
  // Host memory that could be used for more suspended data.
  uint64_t host_free_bytes = 0;
  uint64_t host_total_bytes = 0;  // of the machine; 0 if unknown
  // Room for files with more of it.
  uint64_t spill_free_bytes = 0;
  // All living programs. Without facts for a program on which an operation is in progress, and for
  // one of `silent`.
  std::map<std::string, std::optional<Facts>> programs;
  // Programs that do not answer, for example because a debugger has stopped them. The last known
  // facts hold, and nothing is done with them.
  std::set<std::string> silent;
};

struct Limits {
  Settings policy;
  Time max_wait = std::chrono::seconds(60);  // of an allocation
  uint64_t host_bytes = 0;                   // for suspended data; 0: most of the free memory
  uint64_t gpu_spare_bytes = 0;              // left free on each GPU, but at most a sixteenth of it
  // How long a program whose swap failed is left alone. Doubles with each failure in a row.
  Time first_hold = std::chrono::seconds(1);
  Time longest_hold = std::chrono::seconds(60);
  // How old a survey may be for a program that waits at its gate.
  Time fresh = std::chrono::milliseconds(500);
  // How old a survey may be while a program waits: other programs may have freed memory since.
  Time stale = std::chrono::seconds(5);
  // How long a program on which an operation is in progress can keep the others from being refused.
  Time settles = std::chrono::seconds(10);
  // How long a granted allocation may take until surveys are believed to contain it.
  Time grant_takes = std::chrono::milliseconds(200);
};

struct SwapResult {
  bool ok = false;
  bool busy = false;    // another operation works on the program
  std::string problem;  // if not ok
  Time took{0};
};

// An operation that a user began.
enum class Hand { kSuspend, kResume, kOther };

struct Plan {
  struct Swap {
    std::string id;
    Action::Kind kind;   // not kGrant
    std::string for_id;  // of a suspend
    bool spill = false;  // the data goes to files, because host memory is used up
  };
  struct Answer {
    std::string id;
    uint64_t process;
    uint64_t number;
    bool try_again;
  };
  std::vector<Swap> swaps;
  std::vector<Answer> answers;
  std::vector<uint64_t> released;  // operations by hand that may begin
  bool survey = false;             // a decision needs a new survey
  std::optional<Time> look_again;  // call TimeHasCome() and Next() then
};

// The account of a program that outlives the daemon.
struct Saved {
  bool pinned = false;
  bool suspended_by_hand = false;
  uint64_t swaps = 0;
  Time lost{0};
  bool operator==(const Saved&) const = default;
};

// A program as the user sees it.
struct View {
  std::string id;
  Facts facts;
  bool known = false;  // `facts` are from a survey
  State target = State::kAwake;
  std::optional<Time> wanted_since;
  uint64_t asked_bytes = 0;
  bool at_gate = false;
  Saved saved;
  std::string problem;  // of the last swap, or why it waits in vain
  uint64_t failures = 0;
};

class Coordinator {
 public:
  explicit Coordinator(Limits limits) : limits_(limits) {}

  // What an earlier daemon knew about a program.
  void Restore(const std::string& id, const Saved& saved) { earlier_[id] = saved; }
  // Programs that the survey does not name have ended.
  void Apply(const Survey& survey, Time now);
  // Replaces what the process wanted before.
  void SetWant(const std::string& id, uint64_t process, const Want& want, Time now);
  // The process has ended, or its connection is lost: its waiting allocation has failed.
  void Disconnected(const std::string& id, uint64_t process);
  void SetUsed(const std::string& id, Time last_use);
  void SwapEnded(const std::string& id, const SwapResult& result, Time now);
  // Returns false if there is no such program.
  bool Pin(const std::string& id, bool pinned);

  // An operation by hand waits until Next() releases its token: until a swap in progress has ended,
  // and for a resume until there is room, or no hope of it.
  void HandBegan(uint64_t token, const std::string& id, Hand hand, Time now);
  void HandEnded(uint64_t token, bool ok, Time now);

  // Time has passed: sizes may have changed.
  void TimeHasCome(Time now) { needed_ = std::max(needed_, now); }
  Plan Next(Time now);

  bool IsShared(const std::string& id) const { return programs_.contains(id); }
  // Returns true if a program waits, and so the time of the last use of all others matters.
  bool AnyWaits() const;
  // Returns false if the data of all programs and `bytes` more would not fit into host memory.
  bool HasHostRoom(uint64_t bytes) const;
  std::vector<View> Show() const;

 private:
  struct Waiting {
    Want want;
    Time allocation_since{0};
    int grants = 0;  // since the process last waited for no allocation
  };
  struct Program {
    Facts facts;
    bool known = false;
    bool silent = false;
    Time changed{0};  // surveys that began earlier are ignored
    State target = State::kAwake;
    bool swapping = false;
    bool spills = false;                  // a suspend in progress writes to files
    std::map<uint64_t, Waiting> waiting;  // by process
    std::optional<Time> wanted_since;
    std::map<std::string, uint64_t> granted;  // bytes by GPU that may not be allocated yet
    Time granted_at{0};
    bool by_hand_suspended = false;
    bool pinned = false;
    bool promised = false;
    Time used_last{0}, turn_began{0}, suspend_cost{0}, resume_cost{0};
    uint64_t failures_in_row = 0, failures = 0, swaps = 0;
    Time held_until{0}, lost{0}, swap_began{0};
    std::string problem;
  };
  struct HandOperation {
    std::string id;
    Hand hand;
    Time since;
    bool released = false;
  };

  bool HandWaits(const std::string& id, Hand hand) const;
  bool InHand(const std::string& id) const;
  bool IsResumedByHand(const std::string& id) const;
  bool Waits(const std::string& id, const Program& program) const;
  void UpdateWanted(const std::string& id, Program& program, Time now);
  void EndGrant(Program& program);
  void Release(Plan& plan, Time now);
  void ReleaseResume(Plan& plan, const std::string& id);
  void ExpireAllocations(Plan& plan, Time now);
  void Answer(Plan& plan, const std::string& id, bool try_again);
  // With `hopeful`, programs that are only temporarily in the way are not.
  Table MakeTable(Time now, bool hopeful) const;
  void Refuse(Plan& plan, const Refusal& refusal, Time now);
  void Start(Plan& plan, const Action& action, Time now);
  // Data that is not on the GPUs, or will not be when swaps in progress have ended.
  struct Away {
    uint64_t memory_bytes = 0;
    uint64_t file_bytes = 0;
  };
  Away AwayBytes() const;
  bool FitsInMemory(const Program& program) const;
  bool MayRefuse() const;
  uint64_t MoverBytes(const std::string& gpu) const;

  Limits limits_;
  std::map<std::string, Program> programs_;
  std::map<std::string, Saved> earlier_;
  std::map<uint64_t, HandOperation> hands_;
  std::map<std::string, uint64_t> gpus_;  // the bytes that programs may share
  uint64_t memory_bytes_ = 0;             // host memory for suspended data
  uint64_t spill_bytes_ = 0;              // and files for it
  // A survey has shown all programs, so the sizes above are right. Until then, but at most for
  // Limits::settles, nothing is refused.
  bool settled_ = false;
  std::optional<Time> first_surveyed_;  // when the first survey began
  Time surveyed_{Time::min()};          // when the last survey began
  Time needed_{0};
};

}  // namespace stasis::sharing
