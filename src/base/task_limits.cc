#include "base/task_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"

namespace stasis {
namespace {

constexpr size_t kMaxNumberBytes = 64;

// Returns the first line of a control group file, or an empty string if it cannot be read.
std::string ReadLine(const std::string& path) {
  std::string text = ReadFile(path, kMaxNumberBytes).value_or("");
  return text.substr(0, text.find('\n'));
}

// A cgroup hierarchy and the line prefix that names the group's path: "0::/a/b" in version 2,
// "8:pids:/a/b" in version 1.
struct Hierarchy {
  std::string_view line;
  const char* folder;  // relative to the cgroup mount point
};
constexpr Hierarchy kHierarchies[] = {{"0::", ""}, {"0::", "/unified"}, {":pids:", "/pids"}};

// Adds the innermost control group that has a limit, and every parent whose limit is reached.
void AddControlGroups(std::string_view line, const Hierarchy& hierarchy, const std::string& root,
                      std::string& text) {
  const size_t at = line.find(hierarchy.line);
  if (at == std::string_view::npos) return;
  bool is_first = true;
  for (std::string path(line.substr(at + hierarchy.line.size())); !path.empty();
       path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'))) {
    if (path == "/") path.clear();
    const std::string folder = root + hierarchy.folder + path;
    const std::string most = ReadLine(folder + "/pids.max");
    if (!most.empty() && most != "max") {
      const std::string now = ReadLine(folder + "/pids.current");
      if (is_first || now == most) {
        if (!text.empty()) text += ", ";
        text += most + " for control group " + (path.empty() ? "/" : path) + " (pids.max; now " +
                now + ")";
      }
      is_first = false;
    }
    if (path.empty()) break;
  }
}

}  // namespace

std::string DescribeTaskLimits(std::string_view proc_cgroup, const std::string& root) {
  std::string text;
  rlimit limit{};
  // Root is exempt from this limit.
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &limit) == 0 &&
      limit.rlim_cur != RLIM_INFINITY) {
    text = std::to_string(limit.rlim_cur) + " for this user (ulimit -u)";
  }
  // A thread's stack needs address space; running out of it gives the same errno.
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    if (!text.empty()) text += ", ";
    text += std::to_string(limit.rlim_cur) + " bytes of address space (ulimit -v)";
  }
  while (!proc_cgroup.empty()) {
    const std::string_view line = proc_cgroup.substr(0, proc_cgroup.find('\n'));
    proc_cgroup.remove_prefix(std::min(proc_cgroup.size(), line.size() + 1));
    for (const Hierarchy& hierarchy : kHierarchies) {
      AddControlGroups(line, hierarchy, root, text);
    }
  }
  return text.empty() ? text : "the limits on processes and threads are " + text;
}

Error TaskError(int errno_value, std::string what) {
  Error error = ErrnoError(errno_value, std::move(what));
  if (errno_value != EAGAIN) return error;
  error.code = Code::kResourceExhausted;
  const std::string limits =
      DescribeTaskLimits(ReadFile("/proc/self/cgroup").value_or(""), "/sys/fs/cgroup");
  if (!limits.empty()) error.message += "; " + limits;
  error.hint = kRaiseTaskLimit;
  return error;
}

}  // namespace stasis
