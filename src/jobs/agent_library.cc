#include "jobs/agent_library.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/build_id.h"
#include "base/file.h"
#include "base/install_layout.h"

namespace stasis::jobs {

namespace fs = std::filesystem;

namespace {

constexpr char kFolder[] = "agents";
constexpr size_t kMinIdChars = 16, kMaxIdChars = 128;

bool IsBuildId(const std::string& id) {
  return id.size() >= kMinIdChars && id.size() <= kMaxIdChars &&
         id.find_first_not_of("0123456789abcdef") == id.npos;
}

// Creates a directory that programs of other users can traverse, whatever the umask.
Status MakePassable(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0) {
    if (errno == EEXIST) return {};
    return FailErrno(errno, "mkdir " + path);
  }
  if (::chmod(path.c_str(), mode) != 0) return FailErrno(errno, "chmod " + path);
  return {};
}

// Creates the file completely or not at all, even across a power failure. Keeps an existing file.
Status PutFile(const std::string& path, const std::string& content) {
  std::string folder = fs::path(path).parent_path(), temporary = folder + "/.new-XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return FailErrno(errno, "create " + temporary);
  Status status = WriteAll(fd.get(), content);
  if (status && ::fchmod(fd.get(), 0555) != 0) status = FailErrno(errno, "chmod");
  if (status && ::fsync(fd.get()) != 0) status = FailErrno(errno, "sync");
  // link(2), because rename(2) would replace a file that a program has mapped.
  if (status && ::link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    status = FailErrno(errno, "link");
  }
  ::unlink(temporary.c_str());
  if (!status) return Annotate(std::move(status), "write " + path);
  return FsyncPath(folder);
}

// Creates `path` below the directory `agents` with `content`, and its two parent directories.
// Writes nothing if the file exists, so that programs can start even if the disk is full.
Status Put(const std::string& path, const std::string& content) {
  if (auto found = ReadFile(path, kMaxAgentLibraryBytes); found && *found == content) return {};
  fs::path folder = fs::path(path).parent_path(), agents = folder.parent_path();
  STASIS_TRY(MakeDirs(agents.parent_path(), 0711));
  STASIS_TRY(MakePassable(agents, 0755));
  STASIS_TRY(MakePassable(folder, 0755));
  STASIS_TRY(FsyncPath(agents));
  STASIS_TRY(PutFile(path, content));
  STASIS_ASSIGN(std::string found, ReadFile(path, kMaxAgentLibraryBytes));
  if (found == content) return {};
  return Fail(Code::kFailedPrecondition,
              path + " is not the agent's library: the file was changed or damaged",
              "move the file away; the next `stasis run` installs the library again");
}

// Lets other users pass through the directory: a program may change its user before it starts other
// programs, which also load the library.
Status LetPass(const std::string& folder) {
  struct stat st;
  if (::stat(folder.c_str(), &st) != 0) return FailErrno(errno, "stat " + folder);
  if ((st.st_mode & 0011) == 0011 || st.st_uid != ::geteuid()) return {};
  if (::chmod(folder.c_str(), (st.st_mode & 07777) | 0011) != 0) {
    return FailErrno(errno, "chmod " + folder);
  }
  return {};
}

// Checks that ld.so can load the library. If it cannot, it only prints a line to the program's
// stderr and starts the program without the agent.
Status CheckLoadable(const std::string& path) {
  // ld.so splits LD_PRELOAD at blanks and colons, and expands $ORIGIN and similar variables.
  if (path.find_first_of(" :$\t\n") != path.npos) {
    return Fail(
        Code::kUnimplemented,
        "the agent's library cannot be preloaded from " + path + ": the path has a ' ', ':' or '$'",
        "set STASIS_STATE_DIR (folders.state) to a path without these characters");
  }
  struct statvfs st;
  if (::statvfs(path.c_str(), &st) == 0 && (st.f_flag & ST_NOEXEC) != 0) {
    return Fail(Code::kUnimplemented,
                "programs cannot load " + path + ": its file system is mounted noexec",
                "set STASIS_STATE_DIR (folders.state) to a folder on another file system");
  }
  return {};
}

}  // namespace

Result<AgentLibrary> OwnAgentLibrary() {
  STASIS_ASSIGN(std::string root, InstallRoot());
  AgentLibrary library;
  library.path = root + "/lib/" + kAgentLibraryName;
  auto build_id = ReadBuildId(library.path);
  if (!build_id) {
    return Fail(Code::kUnimplemented, "the agent's library is missing: " + build_id.error().message,
                "the installation is incomplete: unpack or build it again");
  }
  library.build_id = *build_id;
  if (!IsBuildId(library.build_id)) {
    return Fail(Code::kUnimplemented, library.path + " has no build id",
                "the installation is damaged: unpack or build it again");
  }
  return library;
}

std::string AgentLibraryPath(const Paths& paths, const std::string& build_id) {
  return paths.data + "/" + kFolder + "/" + build_id + "/" + kAgentLibraryName;
}

Result<std::string> InstallAgentLibrary(const Paths& paths) {
  STASIS_ASSIGN(AgentLibrary own, OwnAgentLibrary());
  STASIS_ASSIGN(std::string content, ReadFile(own.path, kMaxAgentLibraryBytes));
  std::string path = AgentLibraryPath(paths, own.build_id);
  STASIS_TRY(Put(path, content));
  STASIS_TRY(LetPass(paths.data));
  STASIS_TRY(CheckLoadable(path));
  return path;
}

bool IsInstalledPlace(const std::string& path, const std::string& build_id) {
  std::string end = std::string("/") + kFolder + "/" + build_id + "/" + kAgentLibraryName;
  return IsBuildId(build_id) && path.starts_with('/') && path.ends_with(end) &&
         fs::path(path).lexically_normal() == path;
}

Status RestoreAgentLibrary(const std::string& path, const std::string& build_id,
                           const std::string& source) {
  if (!IsInstalledPlace(path, build_id)) {
    return Fail(Code::kInvalidArgument, path + " is not a path where Stasis installs its agent");
  }
  if (PathExists(path)) return {};
  STASIS_ASSIGN(std::string found, ReadBuildId(source));
  if (found != build_id) {
    return Fail(Code::kFailedPrecondition, source + " has the build id " +
                                               (found.empty() ? "(none)" : found) +
                                               ", but the program needs " + build_id);
  }
  STASIS_ASSIGN(std::string content, ReadFile(source, kMaxAgentLibraryBytes));
  return Annotate(Put(path, content), "restore " + path);
}

std::string PreloadValue(const std::string& current, const std::string& library) {
  std::string value = library;
  for (size_t at = 0; at < current.size();) {
    size_t end = std::min(current.find_first_of(" :", at), current.size());
    std::string element = current.substr(at, end - at);
    at = end + 1;
    if (element.empty() || fs::path(element).filename() == kAgentLibraryName) continue;
    value += (value.empty() ? "" : ":") + element;
  }
  return value;
}

namespace {

// The agent needs an x86-64 or arm64 processor. On other processors the driver handles programs
// alone.
#if defined(__x86_64__) || defined(__aarch64__)
constexpr bool kHasAgent = true;
#else
constexpr bool kHasAgent = false;
#endif

}  // namespace

Result<std::string> AgentToPreload(const Paths& paths, bool without) {
  if (without || !kHasAgent) return std::string();
  auto library = InstallAgentLibrary(paths);
  if (library) return library;
  Error error = std::move(library).error();
  error.code = Code::kUnimplemented;
  error.hint += (error.hint.empty() ? "" : "; or ") +
                std::string(
                    "start it with --no-agent: the driver alone then saves its GPU "
                    "memory, which is slower");
  return Fail(std::move(error).WithContext("cannot start the program under the agent"));
}

}  // namespace stasis::jobs
