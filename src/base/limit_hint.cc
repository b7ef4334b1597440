#include "base/limit_hint.h"

#include <sys/resource.h>

#include <cerrno>

namespace stasis {
namespace {

// Limits that a GPU driver may exceed: it reserves address space for the memory of all GPUs, and
// starts threads.
struct HintRow {
  int resource;
  rlim_t enough;
  const char* name;
  const char* unit;
};
constexpr HintRow kRows[] = {
    {RLIMIT_AS, RLIM_INFINITY, "memory (`ulimit -v`)", " bytes"},
    {RLIMIT_DATA, RLIM_INFINITY, "data memory (`ulimit -d`)", " bytes"},
    {RLIMIT_CPU, RLIM_INFINITY, "CPU time (`ulimit -t`)", " s"},
    {RLIMIT_FSIZE, RLIM_INFINITY, "the size of files (`ulimit -f`)", " bytes"},
    {RLIMIT_NOFILE, 256, "open files (`ulimit -n`)", ""},
    {RLIMIT_NPROC, 256, "processes (`ulimit -u`)", ""},
};

rlim_t SoftLimit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return RLIM_INFINITY;
  return limit.rlim_cur;
}

}  // namespace

std::string LimitText(int resource) {
  const rlim_t limit = SoftLimit(resource);
  if (limit == RLIM_INFINITY) return {};
  const std::string program = program_invocation_short_name;
  return (program == "stasis" ? "" : " of " + program) + ", which is " + std::to_string(limit);
}

std::string LikelyLimitHint() {
  for (const HintRow& row : kRows) {
    if (SoftLimit(row.resource) >= row.enough) continue;
    return std::string("Raise the limit on ") + row.name + LimitText(row.resource) + row.unit +
           ": it is the likely reason";
  }
  return {};
}

}  // namespace stasis
