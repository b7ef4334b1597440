#include "process/proc.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "base/bounded.h"
#include "base/file.h"
#include "process/memory.h"

namespace stasis::process {
namespace {

constexpr uint64_t kFlagExiting = 0x00000004;       // PF_EXITING
constexpr uint64_t kFlagKernelThread = 0x00200000;  // PF_KTHREAD, include/linux/sched.h

std::string ProcPath(HostPid pid, const std::string& name) {
  return "/proc/" + std::to_string(pid.value) + "/" + name;
}

// Maps ENOENT and ESRCH, which both mean that the process has ended, to one message.
template <class T>
Result<T> Gone(Result<T> result, HostPid pid) {
  if (!result && result.error().domain == Domain::kErrno &&
      (result.error().raw == ENOENT || result.error().raw == ESRCH)) {
    return Fail(Code::kNotFound, Domain::kProcess, result.error().raw,
                "there is no process " + ToString(pid));
  }
  return result;
}

// Reads a list of NUL-terminated strings from the memory of the process.
Result<std::vector<std::string>> ReadStrings(HostPid pid, const char* name,
                                             const Deadline& deadline) {
  auto read = [&](const NoteStep& note) {
    note("read " + ProcPath(pid, name));
    return Gone(ReadFile(ProcPath(pid, name)), pid);
  };
  STASIS_ASSIGN(std::string text, AskBounded(read, deadline));
  std::vector<std::string> strings;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\0', at);
    if (end == std::string::npos) end = text.size();
    strings.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return strings;
}

}  // namespace

std::string ToString(HostPid pid) { return std::to_string(pid.value); }

Result<Stat> ReadStat(HostPid pid) {
  if (pid.value <= 0) return Fail(Code::kInvalidArgument, ToString(pid) + " is not a process id");
  STASIS_ASSIGN(std::string text, Gone(ReadFile(ProcPath(pid, "stat")), pid));
  // The name is in parentheses and may hold any character, so the fields are read after the last
  // ')'.
  size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 > text.size()) {
    return Fail(Code::kInternal, ProcPath(pid, "stat") + " has an unknown format");
  }
  Stat stat;
  stat.comm = text.substr(open + 1, close - open - 1);
  std::istringstream fields(text.substr(close + 2));
  long ignored;
  fields >> stat.state >> stat.parent.value >> stat.process_group >> stat.session >> stat.tty >>
      ignored >> stat.flags;
  for (int i = 10; i <= 21; ++i) fields >> ignored;
  fields >> stat.id.start_time;
  if (!fields) return Fail(Code::kInternal, ProcPath(pid, "stat") + " has an unknown format");
  stat.id.pid = pid;
  stat.kernel_thread = (stat.flags & kFlagKernelThread) != 0;
  return stat;
}

Result<Credentials> ReadCredentials(HostPid pid) {
  STASIS_ASSIGN(std::string text, Gone(ReadFile(ProcPath(pid, "status")), pid));
  Credentials cred;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "Uid:") {
      for (uid_t& uid : cred.uid) words >> uid;
    } else if (key == "Gid:") {
      for (gid_t& gid : cred.gid) words >> gid;
    } else if (key == "Groups:") {
      for (gid_t gid; words >> gid;) cred.groups.push_back(gid);
    } else if (key == "CapInh:" || key == "CapPrm:" || key == "CapEff:" || key == "CapAmb:") {
      uint64_t bits = 0;
      words >> std::hex >> bits;
      cred.capabilities |= bits;
    } else if (key == "TracerPid:") {
      words >> cred.tracer.value;
    } else if (key == "Tgid:") {
      words >> cred.thread_group.value;
    }
  }
  return cred;
}

Result<MemoryUse> ReadMemoryUse(HostPid pid) {
  STASIS_ASSIGN(std::string text, Gone(ReadFile(ProcPath(pid, "status")), pid));
  MemoryUse use;
  const std::pair<std::string_view, uint64_t*> fields[] = {{"RssAnon:", &use.anonymous_bytes},
                                                           {"RssShmem:", &use.shared_bytes},
                                                           {"VmSwap:", &use.swapped_bytes}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t kib = 0;
    words >> key >> kib;
    for (const auto& [name, bytes] : fields) {
      if (key == name) *bytes = kib * 1024;
    }
  }
  return use;
}

bool IsThreadOfAnother(pid_t tid) { return !CheckNotThread({tid}); }

Status CheckNotThread(HostPid pid) {
  auto cred = ReadCredentials(pid);
  if (!cred || cred->thread_group == pid) return {};
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              ToString(pid) + " is a thread, not a process",
              "its process is " + ToString(cred->thread_group));
}

Result<std::vector<OpenFile>> ReadOpenFiles(HostPid pid) {
  STASIS_ASSIGN(auto names, Gone(ListDir(ProcPath(pid, "fd")), pid));
  std::vector<OpenFile> files;
  for (const auto& name : names) {
    auto target = ReadLink(ProcPath(pid, "fd/" + name));
    if (!target) continue;  // closed in the meantime
    files.push_back({std::atoi(name.c_str()), std::move(*target)});
  }
  return files;
}

namespace {

Result<std::string> MappingsText(HostPid pid) {
  return Gone(ReadFile(ProcPath(pid, "maps"), 256u << 20), pid);
}

Result<std::vector<Mapping>> ParseMappings(HostPid pid, const std::string& text) {
  std::vector<Mapping> mappings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Mapping m;
    char perms[8] = {}, device[32] = {};
    int path_at = 0;
    unsigned long begin, end, offset, inode;
    if (std::sscanf(line.c_str(), "%lx-%lx %7s %lx %31s %lu %n", &begin, &end, perms, &offset,
                    device, &inode, &path_at) < 6) {
      return Fail(Code::kInternal, ProcPath(pid, "maps") + " has an unknown format");
    }
    m.begin = begin;
    m.end = end;
    m.perms = perms;
    m.offset = offset;
    m.inode = inode;
    m.path = line.substr(static_cast<size_t>(path_at));
    mappings.push_back(std::move(m));
  }
  return mappings;
}

}  // namespace

Result<std::vector<Mapping>> ReadMappings(HostPid pid) {
  auto read = [&](const NoteStep& note) {
    note("list the mappings of process " + ToString(pid));
    return MappingsText(pid);
  };
  auto text = AskBounded(read, Deadline::In(kMemoryAnswer));
  // An undo reads mappings too, and must work even at the limit on processes, where no child can be
  // started. In that case read the mappings without a child.
  const bool no_child = !text && text.error().code == Code::kResourceExhausted;
  if (no_child || (text && text->size() >= kLongestAnswer)) return ReadMappingsWithin(pid);
  if (!text) return Fail(std::move(text).error());
  return ParseMappings(pid, *text);
}

Result<std::vector<Mapping>> ReadMappingsWithin(HostPid pid) {
  STASIS_ASSIGN(std::string text, MappingsText(pid));
  return ParseMappings(pid, text);
}

Result<std::vector<std::string>> ReadCommandLine(HostPid pid) {
  return ReadCommandLine(pid, Deadline::In(kMemoryAnswer));
}

Result<std::vector<std::string>> ReadCommandLine(HostPid pid, const Deadline& deadline) {
  return ReadStrings(pid, "cmdline", deadline);
}

Result<std::vector<std::string>> ReadEnvironment(HostPid pid, const Deadline& deadline) {
  return ReadStrings(pid, "environ", deadline);
}

Result<std::string> ReadExecutable(HostPid pid) {
  return Gone(ReadLink(ProcPath(pid, "exe")), pid);
}

Result<uint64_t> ReadNamespace(HostPid pid, const std::string& kind) {
  STASIS_ASSIGN(std::string link, Gone(ReadLink(ProcPath(pid, "ns/" + kind)), pid));
  size_t open = link.find('[');
  if (open == std::string::npos)
    return Fail(Code::kInternal, "the namespace link " + link + " has an unknown format");
  return std::strtoull(link.c_str() + open + 1, nullptr, 10);
}

Result<std::vector<pid_t>> ReadThreads(HostPid pid) {
  STASIS_ASSIGN(auto names, Gone(ListDir(ProcPath(pid, "task")), pid));
  std::vector<pid_t> threads;
  for (const auto& name : names) threads.push_back(std::atoi(name.c_str()));
  return threads;
}

Result<UniqueFd> OpenPidfd(const ProcessId& id) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, id.pid.value, 0)));
  // EINVAL and ENOENT (by kernel version) mean that the pid is now the id of a thread.
  const bool gone = !fd && (errno == ESRCH || errno == EINVAL || errno == ENOENT);
  if (!fd && !gone) return FailErrno(errno, "open a pidfd of process " + ToString(id.pid));
  if (gone) {
    return Fail(Code::kNotFound, Domain::kProcess, errno,
                "there is no process " + ToString(id.pid));
  }
  // Must be read after the open: the pidfd keeps the pid from being reused, so this is the start
  // time of the process that the pidfd refers to.
  STASIS_ASSIGN(Stat stat, ReadStat(id.pid));
  if (stat.id != id) {
    return Fail(Code::kNotFound, Domain::kProcess, 0,
                "process " + ToString(id.pid) +
                    " has ended; its pid now belongs to another process (" + stat.comm + ")");
  }
  return fd;
}

std::string Describe(const Stat& stat) {
  return "process " + ToString(stat.id.pid) + " (" + stat.comm + ")";
}

bool IsAlive(const Stat& stat) {
  return stat.state != 'Z' && stat.state != 'X' && (stat.flags & kFlagExiting) == 0;
}

bool IsAlive(const ProcessId& id) {
  auto stat = ReadStat(id.pid);
  return stat && stat->id == id && IsAlive(*stat);
}

Result<std::string> BootId() {
  STASIS_ASSIGN(std::string text, ReadFile("/proc/sys/kernel/random/boot_id"));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace stasis::process
