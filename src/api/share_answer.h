// Collects the answers of workers into one survey. The answer of a user's worker is not trusted:
// the user can change the records that it reads, and the worker itself.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "sharing/manager.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

class ShareAnswer {
 public:
  // Further programs and processes of one user are ignored.
  static constexpr size_t kMaxPrograms = 256;
  static constexpr int kMaxProcesses = 1024;

  // `belongs` tells whether a process belongs to a user.
  using Belongs = std::function<bool(const process::ProcessId& id, uid_t uid)>;
  explicit ShareAnswer(Belongs belongs);

  // Takes the GPUs and the host memory from the answer of the daemon's own worker. Must be called
  // before AddPrograms.
  void AddMachine(const v1::ShareSurvey& survey);
  // Adds the programs of the owner with this key, and returns the ids of those that share GPUs.
  // Sizes are limited to those of the GPUs, and each process belongs to one program.
  std::set<std::string> AddPrograms(const std::string& key, uid_t uid,
                                    const v1::ShareSurvey& survey);
  // Counts memory as free that is ready for these programs of one user, as AddPrograms returned
  // them, because they use it when they are suspended.
  void AddReady(const std::set<std::string>& ids, uint64_t ready_bytes);
  // Nothing is known of this program, so nothing is done with it.
  void AddUnknown(const std::string& id) { answer_.survey.programs[id] = std::nullopt; }

  sharing::SurveyAnswer Take() && { return std::move(answer_); }

 private:
  sharing::Facts FactsOf(const v1::ShareSurvey::Program& program, bool can_spill) const;
  // Returns false if the process belongs to another user or program.
  bool Claim(const process::ProcessId& id, uid_t uid);

  const Belongs belongs_;
  std::set<process::ProcessId> claimed_;
  sharing::SurveyAnswer answer_;
};

}  // namespace stasis::api
