#include "conformance/kit.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "abi/driver_kinds.h"
#include "base/deadline.h"

namespace stasis::conformance {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kJob[] = "conformance";
constexpr char kRound[] = "ROUND ";
// The program compares all of its memory in each round. The first line after a resume may belong to
// a round that began before the suspend.
constexpr int kRounds = 2;
constexpr int kSkipped = 77;  // exit code of hip_probe
constexpr char kMemory[] = "96M";
constexpr int64_t kLeastMoved = 90 << 20;
// The program ends by itself some time after the run, if the clean-up could not end it.
constexpr char kMostRounds[] = "60000";

// What the steps share.
struct Run {
  const KitOptions& options;
  Commands& commands;
  Report& report;
  Deadline deadline;         // of the whole run
  std::set<std::string> ok;  // ids of passed steps
  std::string log;           // of the program
  int pid = 0;               // 0: it does not run
  bool hardware = true;
  bool shared_gpus = false;  // other processes use the GPUs

  milliseconds Limit(seconds limit) const {
    const milliseconds left(std::max(deadline.PollTimeout(), 1));
    return std::min<milliseconds>(limit, left);
  }
};

struct Found {
  Verdict verdict = Verdict::kPassed;
  std::string message;
  std::string log;
  json result;
};

Found Passed(std::string message) { return {Verdict::kPassed, std::move(message), {}, {}}; }
Found Failed(std::string message, std::string log = {}) {
  return {Verdict::kFailed, std::move(message), std::move(log), {}};
}
Found Skipped(std::string message) { return {Verdict::kSkipped, std::move(message), {}, {}}; }

std::string LogOf(const Ran& ran) { return ran.how + "\n" + ran.out + ran.err; }

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// Return a member of an object; empty, null or 0 if it is missing or of another type.
json MemberOf(const json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : json();
}
std::string TextOf(const json& object, const char* key) {
  const json member = MemberOf(object, key);
  return member.is_string() ? member.get<std::string>() : std::string();
}
int64_t NumberOf(const json& object, const char* key) {
  const json member = MemberOf(object, key);
  return member.is_number_integer() ? member.get<int64_t>() : 0;
}

// The message of a failed command of Stasis.
std::string ErrorOf(const Ran& ran, const json& document) {
  std::string message = TextOf(MemberOf(document, "error"), "message");
  if (!message.empty()) return message;
  return ran.err.empty() ? ran.how : FirstLine(ran.err);
}

// Runs `stasis --json …`. The document is the result.
Found Stasis(Run& run, std::vector<std::string> words, seconds limit) {
  words.insert(words.begin(), "--json");
  const Ran ran = run.commands.Stasis(words, run.Limit(limit));
  json document = json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) document = nullptr;
  if (ran.code == 0 && document.is_object()) {
    return {Verdict::kPassed, {}, {}, std::move(document)};
  }
  Found found = Failed(ErrorOf(ran, document), LogOf(ran));
  found.result = std::move(document);
  return found;
}

// ---- Detection

Found KernelDriver(Run& run) {
  for (const auto& [name, text] : run.options.machine) {
    if (name == "amdgpu kernel driver") return Passed(text);
  }
  if (!run.hardware) return Skipped("a software GPU has none");
  return Failed("the kernel driver amdgpu is not loaded");
}

Found OpensKfd(Run& run) {
  constexpr char kKfd[] = "/dev/kfd";
  if (!run.hardware) return Skipped("a software GPU has none");
  if (Status opened = run.commands.CanOpen(kKfd); !opened) return Failed(opened.error().ToString());
  return Passed(kKfd);
}

Found OpensRenderNodes(Run& run) {
  if (!run.hardware) return Skipped("a software GPU has none");
  std::string opened, refused;
  for (const std::string& path : run.options.render_nodes) {
    Status can = run.commands.CanOpen(path);
    std::string& list = can ? opened : refused;
    list += (list.empty() ? "" : ", ") + path;
  }
  if (!opened.empty()) return Passed(opened + (refused.empty() ? "" : "; not: " + refused));
  return Failed(refused.empty() ? "there is no /dev/dri/renderD*" : "cannot be opened: " + refused);
}

Found Library(Run& run) {
  const Ran ran = run.commands.Probe({"describe"}, run.Limit(seconds(60)));
  if (ran.code != 0) {
    return Failed(ran.out.empty() ? ran.how : FirstLine(ran.out), LogOf(ran));
  }
  constexpr std::string_view kKey = "library ";
  const std::string first = FirstLine(ran.out);
  if (first.starts_with(kKey)) run.commands.UseLibrary(first.substr(kKey.size()));
  return Passed(ran.out);
}

Found Gpus(Run& run) {
  Found found = Stasis(run, {"gpu", "ls"}, seconds(60));
  if (found.verdict != Verdict::kPassed) return found;
  run.report.driver = TextOf(MemberOf(found.result, "driver"), "kind");
  run.hardware = abi::IsHardware(run.report.driver);
  if (!abi::IsHip(run.report.driver)) {
    found.verdict = Verdict::kFailed;
    found.message = "the driver is " + run.report.driver + ", not HIP's";
    return found;
  }
  const json processes = MemberOf(found.result, "processes");
  // The server of a software GPU counts as a process that uses it.
  run.shared_gpus = run.hardware && processes.is_array() && !processes.empty();
  found.message = run.report.driver +
                  (run.hardware ? "" : ", a software GPU: this run says nothing about AMD GPUs");
  return found;
}

// Findings `cannot` concern the machine. The steps that need the feature show the consequences.
Found Check(Run& run) {
  Found found = Stasis(run, {"check", "--full", "--timeout", "20"}, seconds(90));
  const json findings = MemberOf(found.result, "findings");
  if (!findings.is_array()) return found;
  std::string cannot;
  for (const json& finding : findings) {
    if (TextOf(finding, "level") != "cannot") continue;
    cannot +=
        (cannot.empty() ? "" : "; ") + TextOf(finding, "id") + ": " + TextOf(finding, "found");
  }
  found.message = cannot.empty() ? "nothing is missing" : cannot;
  return found;
}

template <const char* kName>
Found Fact(Run& run) {
  const Ran ran = run.commands.Probe({"fact", kName}, run.Limit(seconds(60)));
  if (ran.code == 0) return Passed(FirstLine(ran.out));
  if (ran.code == kSkipped) return Skipped(FirstLine(ran.out));
  // Another process may have printed before.
  return Failed(ran.out.empty() ? ran.how : FirstLine(ran.out), LogOf(ran));
}
constexpr char kExport[] = "export", kImport[] = "import-argument", kDmaBuffer[] = "dma-buffer",
               kOldAddress[] = "old-address", kSynchronize[] = "synchronize",
               kReleased[] = "released";

// Takes most of a GPU's memory, which other processes may need.
Found Released(Run& run) {
  if (run.shared_gpus) {
    return Skipped("other processes use the GPUs, and this step takes most of the free memory");
  }
  return Fact<kReleased>(run);
}

// ---- A program

// Adds to a passed step that the program works and compares its memory.
Found Verified(Run& run, Found found) {
  if (found.verdict != Verdict::kPassed) return found;
  Status rounds = run.commands.AwaitLines(run.log, kRound, kRounds, run.Limit(seconds(60)));
  if (!rounds) {
    found.verdict = Verdict::kFailed;
    found.message = rounds.error().message;
    return found;
  }
  found.message += (found.message.empty() ? "" : "; ") + std::string("contents verified");
  return found;
}

Found Start(Run& run) {
  Found found = Stasis(run,
                       {"run", "--job", kJob, "--", run.commands.probe(), "--memory", kMemory,
                        "--interval", "20", "--rounds", kMostRounds},
                       seconds(30));
  if (found.verdict != Verdict::kPassed) return found;
  run.log = TextOf(found.result, "log");
  run.pid = static_cast<int>(NumberOf(found.result, "pid"));
  return Verified(run, std::move(found));
}

Found Suspend(Run& run) {
  Found found = Stasis(run, {"suspend", kJob}, seconds(60));
  if (found.verdict != Verdict::kPassed) return found;
  const int64_t moved = NumberOf(found.result, "shared_bytes");
  found.message = fmt::format("{} MiB left the GPU", moved >> 20);
  if (moved < kLeastMoved) {
    found.verdict = Verdict::kFailed;
    found.message += fmt::format(", of {}", kMemory);
  }
  return found;
}

Found Resume(Run& run) { return Verified(run, Stasis(run, {"resume", kJob}, seconds(60))); }

Found WithCriuLog(Run& run, Found found) {
  if (found.verdict == Verdict::kFailed) found.log += run.commands.CriuLog();
  return found;
}

Found Dump(Run& run) {
  Found found = WithCriuLog(run, Stasis(run, {"dump", kJob, "--name", kJob}, seconds(120)));
  if (found.verdict == Verdict::kPassed) run.pid = 0;
  return found;
}

Found Restore(Run& run) {
  Found found = WithCriuLog(run, Stasis(run, {"restore", kJob}, seconds(120)));
  if (found.verdict != Verdict::kPassed) return found;
  run.pid = static_cast<int>(NumberOf(found.result, "pid"));
  return Verified(run, std::move(found));
}

Found End(Run& run) {
  if (run.pid == 0) return Skipped("the program does not run");
  Found found = Stasis(run, {"kill", kJob, "--only"}, seconds(20));
  if (found.verdict != Verdict::kPassed) return found;
  const Ran ran = run.commands.Stasis({"wait", kJob}, run.Limit(seconds(60)));
  if (ran.code != 0) return Failed("the program did not end well: " + ran.how, LogOf(ran));
  run.pid = 0;
  return Passed("the program compared its memory and exited with code 0");
}

// Has its own time, after the run's.
Found CleanUp(Run& run) {
  constexpr seconds kEach{20};
  std::string log;
  // By the job's name, because `run` may have started the program without an answer.
  (void)run.commands.Stasis({"kill", kJob, "--signal", "KILL"}, kEach);
  if (run.pid > 0) run.commands.Kill(run.pid);
  (void)run.commands.Stasis({"wait", kJob}, kEach);
  const Ran recovered = run.commands.Stasis({"recover"}, kEach);
  if (recovered.code != 0) log += LogOf(recovered);
  const Ran freed = run.commands.Stasis({"arena", "free"}, kEach);
  if (freed.code != 0) log += LogOf(freed);
  if (Status removed = run.commands.RemoveAll(); !removed) {
    return Failed(removed.error().ToString(), log);
  }
  return log.empty() ? Passed("nothing is left") : Failed("recover or arena free failed", log);
}

struct Row {
  const char* id;
  const char* title;
  const char* needs;  // a step that must have passed; empty: none
  Found (*run)(Run&);
};
constexpr Row kRows[] = {
    {"stasis-gpus", "`stasis gpu ls` finds GPUs of HIP", "hip-library", Gpus},
    {"kernel-driver", "the kernel driver amdgpu", "", KernelDriver},
    {"kfd", "this user can open /dev/kfd", "", OpensKfd},
    {"render-nodes", "this user can open a render node", "", OpensRenderNodes},
    {"check", "`stasis check --full`", "", Check},
    {"export", "exported memory can be imported by another process", "hip-library", Fact<kExport>},
    {"import-argument", "how hipMemImportFromShareableHandle takes a descriptor", "hip-library",
     Fact<kImport>},
    {"dma-buffer", "exported memory is a DMA buffer", "hip-library", Fact<kDmaBuffer>},
    {"old-address", "memory can be mapped at its old address", "hip-library", Fact<kOldAddress>},
    {"synchronize", "hipDeviceSynchronize waits for the streams of all threads", "hip-library",
     Fact<kSynchronize>},
    {"released", "released memory is free for other processes at once", "hip-library", Released},
    {"run", "a program starts under the agent", "hip-library", Start},
    {"suspend-1", "suspend", "run", Suspend},
    {"resume-1", "resume", "suspend-1", Resume},
    {"suspend-2", "suspend again", "resume-1", Suspend},
    {"resume-2", "resume again", "suspend-2", Resume},
    {"suspend-3", "suspend a third time", "resume-2", Suspend},
    {"resume-3", "resume a third time", "suspend-3", Resume},
    {"dump", "dump", "run", Dump},
    {"restore", "restore", "dump", Restore},
    {"suspend-4", "suspend the restored program", "restore", Suspend},
    {"resume-4", "resume the restored program", "suspend-4", Resume},
    {"end", "the program ends by itself", "run", End},
};

void Finish(Run& run, Step step, Found found, const Stopwatch& watch) {
  step.verdict = found.verdict;
  step.seconds = watch.Seconds();
  step.message = std::move(found.message);
  step.log = std::move(found.log);
  if (!found.result.is_null()) {
    step.result = found.result.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  if (step.verdict == Verdict::kPassed) run.ok.insert(step.id);
  run.report.steps.push_back(std::move(step));
  run.options.done(run.report.steps.back());
}

Found RunRow(Run& run, const Row& row) {
  // Not skipped: a report that lacks steps must not count as passed.
  if (run.options.cancelled()) return Failed("cancelled");
  if (run.deadline.passed()) return Failed("no time was left");
  if (*row.needs != '\0' && !run.ok.contains(row.needs)) {
    return Skipped(std::string("needs the step ") + row.needs);
  }
  return row.run(run);
}

}  // namespace

Result<Report> RunKit(const KitOptions& options, Commands& commands) {
  const Stopwatch whole;
  Report report;
  report.gpu = "amd";
  report.version = options.version;
  report.began = options.began;
  report.machine = options.machine;
  Run run{options, commands, report, Deadline::In(options.limit), {}, {}, 0, true, false};

  Status saved = options.save(report);
  if (!saved) return Fail(std::move(saved).error());
  auto perform = [&](const char* id, const char* title, auto&& work) {
    report.unfinished = id;
    report.seconds = whole.Seconds();
    if (saved) saved = options.save(report);
    const Stopwatch watch;
    Step step;
    step.id = id;
    step.title = title;
    Finish(run, std::move(step), work(), watch);
  };
  perform("hip-library", "HIP's library and its GPUs", [&] { return Library(run); });
  for (const Row& row : kRows) {
    perform(row.id, row.title, [&] { return RunRow(run, row); });
  }
  perform("clean-up", "nothing is left behind", [&] { return CleanUp(run); });
  report.unfinished.clear();
  report.seconds = whole.Seconds();
  if (saved) saved = options.save(report);
  if (!saved) return Fail(std::move(saved).error());
  return report;
}

}  // namespace stasis::conformance
