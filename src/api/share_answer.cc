#include "api/share_answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/utf8.h"
#include "jobs/job.h"

namespace stasis::api {
namespace {

using sharing::State;

// More than any machine has, and little enough for sums.
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr size_t kMaxPath = 4096;
constexpr size_t kMaxText = 512;

process::ProcessId IdOf(const v1::Process& process) {
  return {{static_cast<pid_t>(process.pid())}, process.start_ticks()};
}

// The daemon watches this file, so it must be one that the job's agent touches.
bool IsSignalFile(const std::string& path, const std::string& job) {
  return path.size() < kMaxPath && path.starts_with("/") && path.ends_with("/" + job + "/share");
}

State StateOf(const std::string& word) {
  return word == "suspended"      ? State::kSuspended
         : word == "context kept" ? State::kContextKept
                                  : State::kAwake;
}

}  // namespace

ShareAnswer::ShareAnswer(Belongs belongs) : belongs_(std::move(belongs)) {
  answer_.survey.host_free_bytes = kMostBytes;  // until AddMachine
}

void ShareAnswer::AddMachine(const v1::ShareSurvey& survey) {
  for (const auto& gpu : survey.gpus()) {
    answer_.survey.gpus[gpu.uuid()] = {std::min(gpu.total_bytes(), kMostBytes),
                                       std::min(gpu.free_bytes(), kMostBytes)};
  }
  answer_.survey.host_free_bytes = std::min(survey.host_free_bytes(), kMostBytes);
  answer_.survey.host_total_bytes = std::min(survey.host_total_bytes(), kMostBytes);
}

bool ShareAnswer::Claim(const process::ProcessId& id, uid_t uid) {
  return belongs_(id, uid) && claimed_.insert(id).second;
}

sharing::Facts ShareAnswer::FactsOf(const v1::ShareSurvey::Program& program, bool can_spill) const {
  sharing::Facts facts;
  facts.share_class =
      program.class_() == "batch" ? sharing::Class::kBatch : sharing::Class::kInteractive;
  facts.state = StateOf(program.state());
  facts.obstacle = Utf8(program.obstacle().substr(0, kMaxText));
  facts.can_spill = can_spill;
  facts.spilled_bytes = std::min(program.spilled_bytes(), kMostBytes);
  for (const auto& gpu : program.gpus()) {
    auto known = answer_.survey.gpus.find(gpu.uuid());
    if (known == answer_.survey.gpus.end()) {
      facts.obstacle =
          fmt::format("the daemon does not see its GPU {}", Utf8(gpu.uuid().substr(0, 64)));
      continue;
    }
    const uint64_t total = known->second.total_bytes;
    const uint64_t data = std::min(gpu.data_bytes(), total);
    facts.memory[gpu.uuid()] = {data, std::min(gpu.context_bytes(), total - data), 0};
  }
  return facts;
}

void ShareAnswer::AddReady(const std::set<std::string>& ids, uint64_t ready_bytes) {
  uint64_t data_bytes = 0;
  for (const std::string& id : ids) {
    const auto& facts = answer_.survey.programs.at(id);
    if (!facts || facts->state != State::kAwake) continue;
    for (const auto& [gpu, memory] : facts->memory) {
      data_bytes = std::min(data_bytes + memory.data, kMostBytes);
    }
  }
  uint64_t& free_bytes = answer_.survey.host_free_bytes;
  free_bytes = std::min(free_bytes + std::min(ready_bytes, data_bytes), kMostBytes);
}

std::set<std::string> ShareAnswer::AddPrograms(const std::string& key, uid_t uid,
                                               const v1::ShareSurvey& survey) {
  std::set<std::string> ids;
  size_t count = 0;
  const uint64_t spill_bytes = std::min(survey.spill_free_bytes(), kMostBytes);
  answer_.survey.spill_free_bytes = std::max(answer_.survey.spill_free_bytes, spill_bytes);
  for (const auto& program : survey.programs()) {
    const std::string id = key + "/" + program.job();
    const process::ProcessId root = IdOf(program.root());
    if (count == kMaxPrograms) break;
    if (!jobs::IsValidId(program.job()) || answer_.programs.contains(id) || !Claim(root, uid)) {
      continue;
    }
    ++count;
    auto& watchable = answer_.programs[id];
    watchable.roots.push_back(root);
    if (IsSignalFile(program.signal_file(), program.job())) {
      watchable.signal_file = program.signal_file();
    }
    if (program.silent()) answer_.survey.silent.insert(id);
    if (program.class_().empty()) continue;  // only its end and its growth matter
    ids.insert(id);
    auto& facts = answer_.survey.programs[id];
    if (program.busy() && !program.silent()) continue;
    if (!program.busy()) {
      facts = FactsOf(program, spill_bytes > 0);
      facts->user = uid;
    }
    for (int i = 0; i < std::min(program.processes_size(), kMaxProcesses); ++i) {
      const process::ProcessId one = IdOf(program.processes(i));
      if (one == root || Claim(one, uid)) watchable.processes.push_back(one);
    }
  }
  return ids;
}

}  // namespace stasis::api
