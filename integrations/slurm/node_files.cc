#include "slurm/node_files.h"

#include <fmt/format.h>

#include <charconv>

#include "base/file.h"

namespace stasis::slurm {
namespace {

constexpr size_t kShortBytes = 64;       // of files with a number
constexpr size_t kTasksBytes = 1 << 20;  // of NODE.tasks
constexpr int kLastSignal = 64;
constexpr int kLastCode = 255;

// Returns the number at the beginning of `text`, at most `most`, and removes it.
std::optional<int> TakeCount(std::string_view& text, int most) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > most) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<TaskSignal> ParseSignalName(std::string_view name) {
  const auto local = TakeCount(name, INT32_MAX);
  if (!local || !name.starts_with('.')) return std::nullopt;
  name.remove_prefix(1);
  const auto signal = TakeCount(name, kLastSignal);
  if (!signal || *signal == 0 || !name.empty()) return std::nullopt;
  return TaskSignal{*local, *signal};
}

}  // namespace

Status WriteCode(const std::string& task, int code) {
  return ReplaceFile(CodeFile(task), fmt::format("{}\n", code));
}

std::optional<int> ReadCode(const std::string& task) {
  auto text = ReadFile(CodeFile(task), kShortBytes);
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  const auto code = TakeCount(rest, kLastCode);
  return rest == "\n" ? code : std::nullopt;
}

void RemoveTaskFiles(const std::string& task) {
  for (const std::string& path :
       {StartFile(task), OutputFile(task), ErrorsFile(task), CodeFile(task)}) {
    (void)RemoveFile(path);
  }
}

Status NodeFiles::BeginRun(int restarts) {
  STASIS_TRY(RemoveFile(path_ + ".synced"));
  STASIS_TRY(RemoveTree(path_ + ".signals"));
  STASIS_TRY(MakeDirs(path_ + ".signals"));
  return ReplaceFile(path_ + ".run", fmt::format("{}\n", restarts));
}

bool NodeFiles::IsSynced() const {
  const std::string run = ReadRun();
  return !run.empty() && ReadFile(path_ + ".synced", kShortBytes) == run;
}

Status NodeFiles::PutSignal(const TaskSignal& signal) {
  return ReplaceFile(fmt::format("{}.signals/{}.{}", path_, signal.local, signal.signal), "");
}

Status NodeFiles::PutSignals(std::vector<TaskSignal>& signals) {
  Status first;
  std::erase_if(signals, [&](const TaskSignal& signal) {
    Status put = PutSignal(signal);
    if (!put && first) first = put;
    return put.has_value();
  });
  return first;
}

Status NodeFiles::WriteTasks(const std::vector<std::string>& tasks) {
  return ReplaceFile(path_ + ".tasks", fmt::format("{}\n", fmt::join(tasks, "\n")));
}

std::vector<std::string> NodeFiles::ReadTasks() const {
  std::vector<std::string> tasks;
  auto text = ReadFile(path_ + ".tasks", kTasksBytes);
  if (!text) return tasks;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    tasks.push_back(text->substr(at, end - at));
    at = end + 1;
  }
  return tasks;
}

void NodeFiles::Remove() {
  for (const char* ending : {".tasks", ".run", ".synced"}) (void)RemoveFile(path_ + ending);
  (void)RemoveTree(path_ + ".signals");
}

std::string NodeFiles::ReadRun() const {
  return ReadFile(path_ + ".run", kShortBytes).value_or("");
}

Status NodeFiles::MarkSynced(const std::string& run) { return ReplaceFile(path_ + ".synced", run); }

std::vector<TaskSignal> NodeFiles::TakeSignals() {
  std::vector<TaskSignal> signals;
  const std::string folder = path_ + ".signals";
  for (const std::string& name : ListDir(folder).value_or(std::vector<std::string>())) {
    const auto signal = ParseSignalName(name);
    // A file that is being written has a temporary name, and is renamed later.
    if (!signal) continue;
    // Before the delivery, so that the same signal may be sent again meanwhile.
    if (RemoveFile(folder + "/" + name)) signals.push_back(*signal);
  }
  return signals;
}

}  // namespace stasis::slurm
