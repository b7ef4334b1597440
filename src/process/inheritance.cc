#include "process/inheritance.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "base/file.h"

namespace stasis::process {
namespace {

struct LimitRow {
  int resource;
  const char* name;
};
constexpr LimitRow kLimits[] = {
    {RLIMIT_AS, "address space"},
    {RLIMIT_CORE, "core file size"},
    {RLIMIT_CPU, "CPU time"},
    {RLIMIT_DATA, "data segment"},
    {RLIMIT_FSIZE, "file size"},
    {RLIMIT_LOCKS, "file locks"},
    {RLIMIT_MEMLOCK, "locked memory"},
    {RLIMIT_MSGQUEUE, "message queues"},
    {RLIMIT_NICE, "nice value"},
    {RLIMIT_NOFILE, "open files"},
    {RLIMIT_NPROC, "processes"},
    {RLIMIT_RSS, "resident memory"},
    {RLIMIT_RTPRIO, "real-time priority"},
    {RLIMIT_RTTIME, "real-time CPU time"},
    {RLIMIT_SIGPENDING, "pending signals"},
    {RLIMIT_STACK, "stack size"},
};

bool SameLimit(pid_t other, int resource) {
  rlimit ours{}, its{};
  if (::prlimit(other, static_cast<__rlimit_resource>(resource), nullptr, &its) != 0) return false;
  if (::prlimit(0, static_cast<__rlimit_resource>(resource), nullptr, &ours) != 0) return false;
  return ours.rlim_max == its.rlim_max &&
         (ours.rlim_cur == its.rlim_cur || resource == RLIMIT_NOFILE);
}

std::optional<int> NiceOf(pid_t pid) {
  errno = 0;
  const int nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(pid));
  if (errno != 0) return std::nullopt;
  return nice;
}

long IoPriorityOf(pid_t pid) {
  constexpr int kWhoProcess = 1;  // IOPRIO_WHO_PROCESS
  return ::syscall(SYS_ioprio_get, kWhoProcess, pid);
}

// Returns the line of /proc/PID/status with this key, or an empty string.
std::string LineOf(const std::string& status, const char* key) {
  const size_t at = status.find(std::string("\n") + key + ":");
  return at == std::string::npos ? "" : status.substr(at, status.find('\n', at + 1) - at);
}

struct StatusRow {
  const char* key;
  const char* name;
  bool of_root_only = false;
};
constexpr StatusRow kStatus[] = {
    // sched_getaffinity(2) is not used, because its caller must know the size of the mask.
    {"Cpus_allowed", "the processors that it may use"},
    {"Gid", "the group"},
    {"Groups", "the supplementary groups"},
    {"NoNewPrivs", "no_new_privs"},
    {"Seccomp", "the seccomp mode"},
    {"Seccomp_filters", "the seccomp filters"},
    // Matters for root only: exec gives the programs of other users no capabilities.
    {"CapBnd", "the capabilities", /*of_root_only=*/true},
};

}  // namespace

std::string InheritanceDifference(HostPid other) {
  for (const LimitRow& row : kLimits) {
    if (!SameLimit(other.value, row.resource)) return std::string("the limit on ") + row.name;
  }
  const std::string its = ToString(other);
  if (NiceOf(other.value) != NiceOf(0)) return "the nice value";
  if (IoPriorityOf(other.value) != IoPriorityOf(0)) return "the I/O priority";
  if (::sched_getscheduler(other.value) != ::sched_getscheduler(0)) return "the scheduling policy";
  auto its_status = ReadFile("/proc/" + its + "/status");
  auto our_status = ReadFile("/proc/self/status");
  if (!its_status || !our_status) return "its status";
  for (const StatusRow& row : kStatus) {
    if (row.of_root_only && ::geteuid() != 0) continue;
    if (LineOf(*its_status, row.key) != LineOf(*our_status, row.key)) return row.name;
  }
  for (const auto& [file, name] : {std::pair{"/oom_score_adj", "the OOM score adjustment"},
                                   std::pair{"/cgroup", "the control group"}}) {
    auto theirs = ReadFile("/proc/" + its + file);
    auto ours = ReadFile(std::string("/proc/self") + file);
    if (!theirs || !ours || *theirs != *ours) return name;
  }
  return "";
}

}  // namespace stasis::process
