#include "slurm/task_program.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/file.h"
#include "slurm/error_output.h"

extern char** environ;

namespace stasis::slurm {
namespace {

constexpr std::string_view kHeader = "stasis-start-1";
constexpr int kMostCpus = 1 << 15;
// More than the kernel takes at an exec.
constexpr size_t kMostStrings = 1 << 20;

constexpr std::string_view kGpuLists[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                          "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"};
// slurmstepd sets it for each task to the binding in force, such as
// "gres/nic:closest+gres/gpu:none"
// ("gpu:none" in 22.05). Other variables, such as SLURM_GPU_BIND, have the job's options, which
// those of the step may override.
constexpr std::string_view kBinding = "SLURMD_TRES_BIND";
constexpr char kGpuHint[] =
    "give each task all GPUs of the step: --gres or --gpus-per-node in place of --gpus-per-task "
    "and --ntasks-per-gpu, or --gpu-bind=none; or omit `together` (docs/slurm.md)";

std::string_view NameOf(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

// Returns the value of a variable; empty if it is not set.
std::string_view ValueIn(const std::vector<std::string>& environment, std::string_view name) {
  for (const std::string& variable : environment) {
    if (NameOf(variable) == name && variable.size() > name.size()) {
      return std::string_view(variable).substr(name.size() + 1);
    }
  }
  return {};
}

// Returns true if a part of the binding gives each task GPUs, or shares of GPUs, of its own.
bool BindsGpus(std::string_view binding) {
  while (!binding.empty()) {
    std::string_view part = binding.substr(0, binding.find('+'));
    binding.remove_prefix(std::min(part.size() + 1, binding.size()));
    if (part.starts_with("gres/")) part.remove_prefix(5);
    const std::string_view name = part.substr(0, part.find(':'));
    if (name != "gpu" && name != "mps" && name != "shard") continue;
    part.remove_prefix(std::min(name.size() + 1, part.size()));
    if (part.starts_with("verbose,")) part.remove_prefix(8);
    if (!part.starts_with("none")) return true;
  }
  return false;
}

using Variables = std::map<std::string_view, std::string_view>;  // by name: NAME=VALUE

Variables ByName(const std::vector<std::string>& environment) {
  Variables variables;
  for (const std::string& variable : environment) variables.emplace(NameOf(variable), variable);
  return variables;
}

Result<std::vector<int>> OwnCpus() {
  cpu_set_t* set = CPU_ALLOC(kMostCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  std::vector<int> cpus;
  const bool known = set != nullptr && ::sched_getaffinity(0, bytes, set) == 0;
  const int error = errno;
  for (int cpu = 0; known && cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
  }
  CPU_FREE(set);
  if (!known) return FailErrno(error, "read the CPUs of the task");
  return cpus;
}

// Reads terminated strings. Every function returns false at the end or at a wrong text.
class Fields {
 public:
  explicit Fields(std::string_view text) : text_(text) {}
  bool Text(std::string* out) {
    const size_t end = text_.find('\0');
    if (end == text_.npos) return false;
    *out = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool Number(size_t most, size_t* out) {
    std::string text;
    if (!Text(&text)) return false;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    return error == std::errc() && end == text.data() + text.size() && *out <= most;
  }
  bool List(std::vector<std::string>* out) {
    size_t count = 0;
    if (!Number(kMostStrings, &count)) return false;
    for (size_t i = 0; i < count; ++i) {
      if (!Text(&out->emplace_back())) return false;
    }
    return true;
  }
  bool AtEnd() const { return text_.empty(); }

 private:
  std::string_view text_;
};

bool ReadFields(Fields& fields, TaskProgram* program) {
  std::string header;
  size_t number = 0, cpus = 0;
  if (!fields.Text(&header) || header != kHeader) return false;
  if (!fields.Text(&program->directory) || !fields.Number(0777, &number)) return false;
  program->umask = static_cast<mode_t>(number);
  if (!fields.Number(1, &number) || !fields.Number(kMostCpus, &cpus)) return false;
  program->one_output = number == 1;
  for (size_t i = 0; i < cpus; ++i) {
    if (!fields.Number(kMostCpus - 1, &number)) return false;
    program->cpus.push_back(static_cast<int>(number));
  }
  return fields.List(&program->argv) && fields.List(&program->environment) && fields.AtEnd() &&
         !program->argv.empty();
}

}  // namespace

Result<TaskProgram> DescribeProgram(std::vector<std::string> argv,
                                    const std::vector<std::string>& changes) {
  TaskProgram program;
  program.argv = std::move(argv);
  Variables changed = ByName(changes);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!changed.contains(NameOf(*variable))) program.environment.emplace_back(*variable);
  }
  for (const auto& [name, variable] : changed) {
    if (variable.size() > name.size() + 1) program.environment.emplace_back(variable);
  }
  program.umask = ::umask(0);
  ::umask(program.umask);
  STASIS_ASSIGN(program.directory, ReadLink("/proc/self/cwd"));
  STASIS_ASSIGN(program.cpus, OwnCpus());
  program.one_output = !AreApart(STDOUT_FILENO, STDERR_FILENO);
  return program;
}

std::string FormatTaskProgram(const TaskProgram& program) {
  std::string text;
  auto add = [&](std::string_view field) { text.append(field).push_back('\0'); };
  auto list = [&](const std::vector<std::string>& strings) {
    add(std::to_string(strings.size()));
    for (const std::string& string : strings) add(string);
  };
  add(kHeader);
  add(program.directory);
  add(std::to_string(program.umask));
  add(program.one_output ? "1" : "0");
  add(std::to_string(program.cpus.size()));
  for (const int cpu : program.cpus) add(std::to_string(cpu));
  list(program.argv);
  list(program.environment);
  return text;
}

Result<TaskProgram> ParseTaskProgram(std::string_view text) {
  TaskProgram program;
  Fields fields(text);
  if (!ReadFields(fields, &program)) {
    return Fail(Code::kDataLoss, "the description of the task's program is damaged",
                "start the step again");
  }
  return program;
}

Status WriteTaskProgram(const std::string& path, const TaskProgram& program) {
  return ReplaceFile(path, FormatTaskProgram(program));
}

Result<TaskProgram> ReadTaskProgram(const std::string& path) {
  STASIS_ASSIGN(const std::string text, ReadFile(path, kStartBytes));
  return Annotate(ParseTaskProgram(text), path);
}

std::vector<std::string> WithChanges(const std::vector<std::string>& environment,
                                     const std::vector<std::string>& before,
                                     const std::vector<std::string>& after) {
  const Variables old_ones = ByName(before), new_ones = ByName(after);
  auto is_unchanged = [&](std::string_view name) {
    const auto was = old_ones.find(name), is = new_ones.find(name);
    if (was == old_ones.end() || is == new_ones.end()) {
      return was == old_ones.end() && is == new_ones.end();
    }
    return was->second == is->second;
  };
  std::vector<std::string> result;
  for (const std::string& variable : environment) {
    if (is_unchanged(NameOf(variable))) result.push_back(variable);
  }
  for (const auto& [name, variable] : new_ones) {
    if (!is_unchanged(name)) result.emplace_back(variable);
  }
  return result;
}

Status CheckGpus(const std::vector<std::string>& tasks, const std::vector<TaskProgram>& programs) {
  for (size_t i = 0; i < programs.size(); ++i) {
    const std::vector<std::string>& own = programs[i].environment;
    for (const std::string_view name : kGpuLists) {
      const std::string_view first = ValueIn(programs[0].environment, name);
      if (ValueIn(own, name) == first) continue;
      return Fail(
          Code::kUnimplemented,
          fmt::format("the tasks of the step have different GPUs: {} is \"{}\" for {} and \"{}\" "
                      "for {}, but with --stasis=together they are one target",
                      name, first, tasks[0], ValueIn(own, name), tasks[i]),
          kGpuHint);
    }
    // In their control groups the GPUs of all tasks may have the same index.
    const std::string_view bind = ValueIn(own, kBinding);
    if (!BindsGpus(bind)) continue;
    return Fail(Code::kUnimplemented,
                fmt::format("Slurm binds the tasks of the step to different GPUs ({} is \"{}\"), "
                            "but with --stasis=together they are one target",
                            kBinding, bind),
                kGpuHint);
  }
  return {};
}

}  // namespace stasis::slurm
