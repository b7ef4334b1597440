#include "containers/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/file.h"

namespace stasis::containers {
namespace {

using nlohmann::json;

tl::unexpected<Error> FailOutput(const std::string& command) {
  return Fail(Code::kInternal, "the output of `" + command + "` was not understood");
}

json Parse(const std::string& text) {
  return json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
}

// Each returns the member if it exists and has the right type, otherwise an empty value or 0.
std::string Text(const json& object, const char* member) {
  if (!object.is_object()) return {};
  auto found = object.find(member);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}
pid_t Pid(const json& object, const char* member) {
  if (!object.is_object()) return 0;
  auto found = object.find(member);
  if (found == object.end() || !found->is_number_integer()) return 0;
  const auto pid = found->get<int64_t>();
  return pid > 0 && pid < (1 << 30) ? static_cast<pid_t>(pid) : 0;
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return text;
}

bool HasInit(const std::string& status) {
  return status == "running" || status == "paused" || status == "created" || status == "pausing";
}

// Normalizes the status, and clears the pid of a stopped container. Some outputs have its last pid.
void Complete(Container& container) {
  container.status = Lower(container.status);
  if (!HasInit(container.status)) container.pid = 0;
}

tl::unexpected<Error> FailMissing(const Reference& reference, const std::string& reason) {
  return Fail(Code::kNotFound, Domain::kProcess, 0,
              fmt::format("there is no container {}: {}", reference.ToString(), reason),
              "`stasis ps --containers` lists them");
}

// Returns true if a runtime's message says that the container does not exist.
bool SaysMissing(const std::string& reason) {
  for (const char* words : {"no such", "does not exist", "not found"}) {
    if (Lower(reason).find(words) != std::string::npos) return true;
  }
  return false;
}

Result<std::string> Ask(CommandRunner& runner, const Reference& reference,
                        const std::vector<std::string>& argv, const Deadline& deadline) {
  auto ran = runner.Run(argv, {deadline, {}});
  if (!ran && ran.error().code == Code::kNotFound) {
    return Fail(Code::kUnimplemented, ran.error().message,
                fmt::format("install {}, or put it on PATH", RuntimeName(reference.runtime)));
  }
  STASIS_ASSIGN(CommandOutput output, std::move(ran));
  if (output.ok()) return std::move(output.out);
  const std::string reason = output.Reason();
  if (SaysMissing(reason)) return FailMissing(reference, reason);
  return Fail(Code::kUnavailable, Domain::kProcess, output.status,
              fmt::format("`{}`: {}", fmt::join(argv, " "), reason));
}

std::vector<std::string> With(std::vector<std::string> command,
                              std::initializer_list<std::string> words) {
  command.insert(command.end(), words);
  return command;
}

Result<Container> FindTask(CommandRunner& runner, const Reference& reference, const Places& places,
                           const Deadline& deadline) {
  const auto command = CommandOf(reference, places);
  STASIS_ASSIGN(
      const std::string info,
      Ask(runner, reference, With(command, {"containers", "info", reference.name}), deadline));
  STASIS_ASSIGN(const std::string text,
                Ask(runner, reference, With(command, {"tasks", "ls"}), deadline));
  STASIS_ASSIGN(auto tasks, ParseCtrTasks(text, reference.containerd_namespace));
  Container container{reference, reference.name, "stopped"};
  for (Container& task : tasks) {
    if (task.id == reference.name) container = std::move(task);
  }
  STASIS_TRY(ParseCtrInfo(info, container));
  return container;
}

// Appends the containers of one runtime, or the reason why they are missing.
void Add(Listed& listed, Runtime runtime, Result<std::vector<Container>> found) {
  if (found) {
    for (Container& one : *found) listed.containers.push_back(std::move(one));
  } else {
    listed.problems.push_back(fmt::format("the containers of {} are not listed: {}",
                                          RuntimeName(runtime), found.error().ToString()));
  }
}

Result<std::vector<Container>> ListTasks(CommandRunner& runner, const Places& places,
                                         const Deadline& deadline) {
  const Reference any{Runtime::kContainerd, {}, kDefaultNamespace};
  STASIS_ASSIGN(
      const std::string names,
      RunOk(runner, With(CommandOf(any, places), {"namespaces", "ls", "--quiet"}), deadline));
  std::vector<Container> all;
  std::istringstream lines(names);
  for (std::string name; lines >> name;) {
    const Reference in{Runtime::kContainerd, {}, name};
    STASIS_ASSIGN(const std::string text,
                  RunOk(runner, With(CommandOf(in, places), {"tasks", "ls"}), deadline));
    STASIS_ASSIGN(auto tasks, ParseCtrTasks(text, name));
    for (Container& task : tasks) all.push_back(std::move(task));
  }
  return all;
}

}  // namespace

Result<Container> ParsePodmanInspect(const std::string& text, const Reference& reference) {
  const json parsed = Parse(text);
  if (!parsed.is_array() || parsed.size() != 1 || !parsed[0].is_object() ||
      !parsed[0].contains("State")) {
    return FailOutput("podman container inspect");
  }
  const json& object = parsed[0];
  Container container{reference, Text(object, "Id"), Text(object["State"], "Status"),
                      Pid(object["State"], "Pid")};
  container.oci_runtime = Text(object, "OCIRuntime");
  container.folder = Text(object, "StaticDir");
  if (container.id.empty() || container.status.empty()) {
    return FailOutput("podman container inspect");
  }
  Complete(container);
  return container;
}

Result<std::vector<Container>> ParsePodmanPs(const std::string& text) {
  const json parsed = Parse(text.empty() ? "[]" : text);
  if (!parsed.is_array() && !parsed.is_null()) return FailOutput("podman ps");
  std::vector<Container> all;
  for (const json& object : parsed) {
    Container container{
        {Runtime::kPodman, {}, {}}, Text(object, "Id"), Text(object, "State"), Pid(object, "Pid")};
    if (container.id.empty()) return FailOutput("podman ps");
    container.reference.name = container.id.substr(0, 12);
    auto names = object.find("Names");
    if (names != object.end() && names->is_array() && !names->empty() && (*names)[0].is_string()) {
      container.reference.name = (*names)[0].get<std::string>();
    }
    Complete(container);
    all.push_back(std::move(container));
  }
  return all;
}

Result<Container> ParseRuncState(const std::string& text, const Reference& reference) {
  const json object = Parse(text);
  Container container{reference, Text(object, "id"), Text(object, "status"), Pid(object, "pid")};
  container.folder = Text(object, "bundle");
  if (container.id.empty() || container.status.empty()) return FailOutput("runc state");
  Complete(container);
  return container;
}

Result<std::vector<Container>> ParseRuncList(const std::string& text) {
  const json parsed = Parse(text);
  if (!parsed.is_array() && !parsed.is_null()) return FailOutput("runc list");
  std::vector<Container> all;
  for (const json& object : parsed) {
    Container container{{Runtime::kRunc, Text(object, "id"), {}},
                        Text(object, "id"),
                        Text(object, "status"),
                        Pid(object, "pid")};
    if (container.id.empty()) return FailOutput("runc list");
    Complete(container);
    all.push_back(std::move(container));
  }
  return all;
}

Result<std::vector<Container>> ParseCtrTasks(const std::string& text,
                                             const std::string& containerd_namespace) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || !line.starts_with("TASK")) return FailOutput("ctr tasks ls");
  std::vector<Container> all;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    Container container{{Runtime::kContainerd, {}, containerd_namespace}, {}, {}};
    if (!(words >> container.id >> container.pid >> container.status) || container.pid < 0) {
      return FailOutput("ctr tasks ls");
    }
    container.reference.name = container.id;
    Complete(container);
    all.push_back(std::move(container));
  }
  return all;
}

Status ParseCtrInfo(const std::string& text, Container& container) {
  const json object = Parse(text);
  if (!object.is_object() || Text(object, "ID").empty()) return FailOutput("ctr containers info");
  container.restorable = !Text(object, "Image").empty() && !Text(object, "SnapshotKey").empty();
  return {};
}

Result<Container> FindContainer(CommandRunner& runner, const Reference& reference,
                                const Places& places, const Deadline& deadline) {
  if (reference.runtime == Runtime::kContainerd) {
    return FindTask(runner, reference, places, deadline);
  }
  const auto command = CommandOf(reference, places);
  if (reference.runtime == Runtime::kPodman) {
    STASIS_ASSIGN(
        const std::string text,
        Ask(runner, reference, With(command, {"container", "inspect", reference.name}), deadline));
    return ParsePodmanInspect(text, reference);
  }
  STASIS_ASSIGN(const std::string text,
                Ask(runner, reference, With(command, {"state", reference.name}), deadline));
  return ParseRuncState(text, reference);
}

Result<Container> FindRunning(CommandRunner& runner, const Reference& reference,
                              const Places& places, const Deadline& deadline) {
  STASIS_ASSIGN(Container container, FindContainer(runner, reference, places, deadline));
  if (container.pid > 0) return container;
  return Fail(Code::kFailedPrecondition, fmt::format("container {} is not running ({})",
                                                     reference.ToString(), container.status));
}

Listed ListContainers(CommandRunner& runner, const Places& places, const Deadline& deadline) {
  Listed listed;
  if (!runner.Find("podman").empty()) {
    auto text = RunOk(runner, {"podman", "ps", "--all", "--format", "json"}, deadline);
    Add(listed, Runtime::kPodman,
        text ? ParsePodmanPs(*text) : Result<std::vector<Container>>(Fail(text.error())));
  }
  std::set<pid_t> known;
  for (const Container& container : listed.containers) known.insert(container.pid);
  // Check the socket first, because ctr waits ten seconds for a daemon that is not running.
  if (!runner.Find("ctr").empty() && PathExists(ContainerdSocket(places))) {
    Add(listed, Runtime::kContainerd, ListTasks(runner, places, deadline));
  }
  if (!runner.Find("runc").empty()) {
    const Reference any{Runtime::kRunc, {}, {}};
    auto text = RunOk(runner, With(CommandOf(any, places), {"list", "--format", "json"}), deadline);
    auto found = text ? ParseRuncList(*text) : Result<std::vector<Container>>(Fail(text.error()));
    if (found) {
      std::erase_if(*found, [&](const Container& one) {
        return one.pid != 0 ? known.contains(one.pid) : one.id.size() == 64;
      });
    }
    Add(listed, Runtime::kRunc, std::move(found));
  }
  return listed;
}

}  // namespace stasis::containers
