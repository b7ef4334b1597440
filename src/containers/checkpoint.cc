#include "containers/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_bytes.h"
#include "containers/archive.h"

namespace stasis::containers {
namespace {

using Words = std::vector<std::string>;

constexpr size_t kMaxLogBytes = 16u << 20;
constexpr size_t kMaxLogReasonBytes = 400;

void Append(Words& command, std::initializer_list<std::string> words) {
  command.insert(command.end(), words);
}

void AppendChoices(Words& command, const CriuChoices& choices) {
  if (choices.tcp_keep) command.emplace_back("--tcp-established");
  if (choices.file_locks) command.emplace_back("--file-locks");
}

tl::unexpected<Error> FailCtr(const std::string& option) {
  return Fail(Code::kUnimplemented, "ctr has no option for " + option + " of a checkpoint");
}

Status CheckCtr(const CheckpointRequest& request) {
  if (request.criu.tcp_keep) return FailCtr("--tcp=keep");
  if (request.criu.file_locks) return FailCtr("--file-locks");
  const std::string name = request.container.reference.ToString();
  if (!request.container.restorable) {
    return Fail(Code::kUnimplemented,
                name + " was not created from an image, so ctr cannot restore it",
                "start it from an image instead of --rootfs");
  }
  if (!request.leave_running) {
    return Fail(Code::kUnimplemented,
                "ctr leaves a container running after its checkpoint, and the work that it does "
                "until it is ended would be lost",
                "add --leave-running; `ctr task kill -s SIGKILL` ends the container");
  }
  return {};
}

Status WriteRuncImage(const CheckpointRequest& request) {
  const nlohmann::json document = {
      {"runtime", "runc"},
      {"id", request.container.id},
      {"bundle", EncodeBytes(request.container.folder)},
      {"root", EncodeBytes(request.places.runc_root)},
      {"time_ms", NowMs()},
  };
  return WriteFileDurably(request.image + "/" + kRuncImageFile, document.dump(1) + "\n");
}

// Returns the path of CRIU's log of a failed command: podman keeps it in the container's folder,
// runc in the image.
std::string CriuLogOf(const Container& container, const std::string& image, const char* log) {
  switch (container.reference.runtime) {
    case Runtime::kPodman:
      return container.folder.empty() ? "" : container.folder + "/" + log;
    case Runtime::kRunc:
      return image + kCriuFolder + "/" + log;
    case Runtime::kContainerd:
      return {};  // the error message of ctr contains it
  }
  return {};
}

// Returns the error of a runtime's command, with CRIU's reason if its log has one.
tl::unexpected<Error> FailCommand(const Words& command, const CommandOutput& output,
                                  const std::string& log) {
  std::string why;
  if (!log.empty()) {
    if (auto text = ReadFile(log, kMaxLogBytes)) why = ReasonInCriuLog(*text);
  }
  if (why.empty()) why = ReasonInCriuLog(output.err);
  // Omits the name of CRIU's log at the end of runc's line, because that log was read.
  const std::string reason = output.Reason();
  std::string message =
      fmt::format("{}: {}", command.front(), reason.substr(0, reason.find("\\nlog file")));
  if (!why.empty()) message += "; CRIU: " + why;
  return Fail(Code::kUnavailable, Domain::kCriu, output.status, std::move(message),
              "`stasis container check` checks the set-up");
}

Result<CommandOutput> RunRuntime(CommandRunner& runner, const Words& command,
                                 const CommandOptions& options) {
  auto output = runner.Run(command, options);
  if (!output && output.error().code == Code::kDeadlineExceeded) {
    output.error().not_undone = true;
    output.error().hint = "`stasis ps --containers` shows the state of the container";
  }
  return output;
}

// Checks that the image has CRIU's files. containerd before 2.0 fails to store the second
// checkpoint of a container, because its store already has the container's specification, but ctr
// reports success.
Status CheckContainerdImage(CommandRunner& runner, const CheckpointRequest& request,
                            const Deadline& deadline) {
  Reference image = request.container.reference;
  image.name = request.image;
  STASIS_ASSIGN(const std::string criu_files,
                BlobOfImage(runner, image, request.places, kCriuFilesBlob, deadline));
  if (!criu_files.empty()) return {};
  Words remove = CommandOf(image, request.places);
  Append(remove, {"images", "rm", request.image});
  (void)runner.Run(remove, {deadline, {}});
  return Fail(
      Code::kFailedPrecondition,
      "containerd has not saved the container's processes: before version 2.0 it cannot "
      "checkpoint a container again while an earlier checkpoint exists",
      "remove the earlier one (`ctr images ls`, `ctr images rm --sync IMAGE`) and try again");
}

}  // namespace

Result<Words> CheckpointCommand(const CheckpointRequest& request) {
  const Reference& reference = request.container.reference;
  Words command = CommandOf(reference, request.places);
  switch (reference.runtime) {
    case Runtime::kPodman:
      Append(command, {"container", "checkpoint"});
      if (request.leave_running) command.emplace_back("--leave-running");
      AppendChoices(command, request.criu);
      if (!request.image.empty()) {
        Append(command, {"--export", request.image, "--compress", request.compress});
      }
      break;
    case Runtime::kRunc:
      Append(command, {"checkpoint", "--image-path", request.image + kCriuFolder});
      if (request.leave_running) command.emplace_back("--leave-running");
      AppendChoices(command, request.criu);
      break;
    case Runtime::kContainerd:
      STASIS_TRY(CheckCtr(request));
      Append(command, {"containers", "checkpoint", "--image", "--rw", "--task", reference.name,
                       request.image});
      return command;
  }
  command.push_back(reference.name);
  return command;
}

Status Checkpoint(CommandRunner& runner, const CheckpointRequest& request,
                  const Deadline& deadline) {
  STASIS_ASSIGN(const Words command, CheckpointCommand(request));
  const bool runc = request.container.reference.runtime == Runtime::kRunc;
  if (runc) {
    if (PathExists(request.image)) {
      return Fail(Code::kAlreadyExists, request.image + " exists already");
    }
    STASIS_TRY(MakeDirs(request.image));
    if (Status written = WriteRuncImage(request); !written) {
      (void)RemoveTree(request.image);
      return written;
    }
  }
  auto output = RunRuntime(runner, command, {deadline, {}});
  if (output && output->ok()) {
    if (request.container.reference.runtime != Runtime::kContainerd) return {};
    return CheckContainerdImage(runner, request, deadline);
  }
  Status failed = output
                      ? Status(FailCommand(command, *output,
                                           CriuLogOf(request.container, request.image, "dump.log")))
                      : Status(Fail(std::move(output).error()));
  if (runc && !failed.error().not_undone) (void)RemoveTree(request.image);
  return failed;
}

Result<RuncImage> ReadRuncImage(const std::string& folder) {
  auto text = ReadFile(folder + "/" + kRuncImageFile, 1u << 20);
  if (!text) {
    return Fail(Code::kNotFound, folder + " is not an image of a container");
  }
  const auto document = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  RuncImage image;
  auto bytes = [&](const char* member) {
    return document.contains(member) ? DecodeBytes(document[member]) : std::nullopt;
  };
  if (document.is_object()) {
    auto id = bytes("id"), bundle = bytes("bundle"), root = bytes("root");
    auto time = document.find("time_ms");
    if (id && bundle && root && time != document.end() && time->is_number_integer() &&
        bundle->starts_with('/')) {
      return RuncImage{*id, *bundle, *root, time->get<int64_t>()};
    }
  }
  return Fail(Code::kDataLoss, folder + "/" + kRuncImageFile + " is damaged");
}

Result<std::string> LatestRuncImage(const std::string& folder, const std::string& id) {
  std::string latest;
  int64_t time_ms = -1;
  for (const std::string& name : ListDir(folder).value_or(Words())) {
    auto image = ReadRuncImage(folder + "/" + name);
    if (!image || image->id != id || image->time_ms < time_ms) continue;
    latest = folder + "/" + name;
    time_ms = image->time_ms;
  }
  if (!latest.empty()) return latest;
  return Fail(Code::kNotFound, fmt::format("there is no checkpoint of runc:{} in {}", id, folder),
              "`stasis restore FOLDER` restores one that is elsewhere");
}

Result<Words> RestoreCommand(const RestoreRequest& request) {
  Words command = CommandOf(request.reference, request.places);
  const std::string name = request.new_name.empty() ? request.reference.name : request.new_name;
  switch (request.reference.runtime) {
    case Runtime::kPodman:
      Append(command, {"container", "restore"});
      AppendChoices(command, request.criu);
      if (request.archive.empty()) {
        if (!request.new_name.empty()) {
          return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                      "podman restores a container under another name only from an archive",
                      "make one with `stasis dump podman:NAME -d FOLDER`");
        }
        command.push_back(name);
        return command;
      }
      Append(command, {"--import", request.archive});
      if (!request.new_name.empty()) Append(command, {"--name", name});
      return command;
    case Runtime::kContainerd:
      if (request.criu.tcp_keep) return FailCtr("--tcp=keep");
      if (request.criu.file_locks) return FailCtr("--file-locks");
      if (!request.gpu_map.empty()) return FailCtr("--gpu-map");
      if (request.new_name.empty()) {
        return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                    "a container of containerd needs a new id at its restore",
                    "add --job ID; the TARGET is the image that `stasis dump` printed");
      }
      Append(command, {"containers", "restore", "--rw", "--live", name, request.reference.name});
      return command;
    case Runtime::kRunc: {
      STASIS_ASSIGN(const RuncImage image, ReadRuncImage(request.runc_image));
      Append(command, {"restore", "--detach", "--image-path", request.runc_image + kCriuFolder,
                       "--bundle", image.bundle});
      AppendChoices(command, request.criu);
      command.push_back(name);
      return command;
    }
  }
  return command;
}

std::vector<std::string> GpuMapVariables(const RestoreRequest& request) {
  if (request.gpu_map.empty()) return {};
  // podman passes only variables that begin with "LC_" on to its runtime.
  const char* prefix = request.reference.runtime == Runtime::kPodman ? "LC_" : "";
  return {fmt::format("{}STASIS_GPU_MAP={}", prefix, request.gpu_map)};
}

Result<Restored> Restore(CommandRunner& runner, const RestoreRequest& request,
                         const Deadline& deadline) {
  STASIS_ASSIGN(const Words command, RestoreCommand(request));
  CommandOptions options{deadline, {}, GpuMapVariables(request)};
  const bool runc = request.reference.runtime == Runtime::kRunc;
  // A container of runc inherits the output of the command. It must not inherit pipes of this
  // process, which ends before the container.
  if (runc) options.output_file = request.output.empty() ? "/dev/null" : request.output;
  STASIS_ASSIGN(const CommandOutput output, RunRuntime(runner, command, options));
  Reference reference = request.reference;
  if (!request.new_name.empty()) reference.name = request.new_name;
  if (!output.ok()) {
    Container container{reference, {}, {}};
    if (reference.runtime == Runtime::kPodman) {
      if (auto found = FindContainer(runner, reference, request.places, deadline)) {
        container = std::move(*found);
      }
    }
    return FailCommand(command, output, CriuLogOf(container, request.runc_image, "restore.log"));
  }
  if (!request.archive.empty() && request.new_name.empty()) {
    // podman prints the id of the imported container.
    std::istringstream words(output.out);
    words >> reference.name;
  }
  Restored restored{reference, 0};
  if (auto found = FindContainer(runner, reference, request.places, deadline)) {
    restored.pid = found->pid;
  }
  return restored;
}

std::string ReasonInCriuLog(const std::string& log) {
  constexpr std::string_view kOurs = "stasis: ", kBecauseOfCriu = ": CRIU could not ";
  std::string ours, first;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t error = line.find("Error (");
    if (error == line.npos) continue;
    const std::string text = line.substr(error).substr(0, kMaxLogReasonBytes);
    if (const size_t at = text.find(kOurs); at != text.npos) {
      ours = text.substr(at + kOurs.size());
    } else if (first.empty() && text.find("RLIMIT_NOFILE for self") == text.npos) {
      first = text;
    }
  }
  const bool only_criu = !first.empty() && ours.find(kBecauseOfCriu) != ours.npos;
  return ours.empty() || only_criu ? first : ours;
}

}  // namespace stasis::containers
