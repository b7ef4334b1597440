// Checks of the kernel, its settings, and host memory.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "health/host_files.h"
#include "health/machine.h"

namespace stasis::health {
namespace {

// 5.9 introduced CAP_CHECKPOINT_RESTORE and close_range, 5.6 pidfd_getfd, 5.5 set_tid of clone3.
constexpr KernelVersion kLeastKernel{5, 9};
constexpr int kSysPtrace = 19, kSysResource = 24;  // from linux/capability.h
constexpr uint64_t kLittleMemlock = 64u << 20;
constexpr uint64_t kManyReserved = 1u << 30;  // bytes in unused pages of hugetlbfs

}  // namespace

void CheckKernel(const Machine&, Findings& findings) {
  utsname name;
  ::uname(&name);
  const std::string found = fmt::format("{} {}", name.sysname, name.release);
  auto version = ParseKernelVersion(name.release);
  const bool old = version && *version < kLeastKernel;
  findings.push_back(Finding::Of("kernel", old ? Level::kCannot : Level::kOk, found));
}

// Only arm64 has a finding. There, CRIU 4.2.1 reads and writes NT_PRSTATUS and NT_PRFPREG.
void CheckVectorRegisters(const Machine& machine, Findings& findings) {
  auto features = ReadArm64Features(machine.options.root);
  if (!features) return;
  std::string found;
  for (const char* name : {"sve", "sme"}) {
    if ((" " + *features + " ").find(fmt::format(" {} ", name)) == std::string::npos) continue;
    found += (found.empty() ? "the processor has " : " and ") + std::string(name);
  }
  findings.push_back(Finding::Of("vector-registers", found.empty() ? Level::kOk : Level::kWarning,
                                 found.empty() ? "neither sve nor sme" : found));
}

void CheckUserNamespace(const Machine& machine, Findings& findings) {
  auto machines = IsMachinesUserNamespace(machine.options.root);
  if (!machines || *machines) {
    findings.push_back(Finding::Of("user-namespace", Level::kOk, "the initial user namespace"));
    return;
  }
  findings.push_back(Finding::Of("user-namespace", Level::kWarning,
                                 "this shell is in a user namespace, as in a rootless container"));
}

void CheckPtraceScope(const Machine& machine, Findings& findings) {
  auto scope = ReadPtraceScope(machine.options.root);
  if (!scope || *scope == 0) {
    findings.push_back(Finding::Of(
        "ptrace-scope", Level::kOk,
        scope ? "kernel.yama.ptrace_scope is 0" : "Yama is not enabled in this kernel"));
    return;
  }
  const bool root = HasCapability(kSysPtrace);
  const std::string found = fmt::format("kernel.yama.ptrace_scope is {}", *scope);
  Level level = root ? Level::kOk : Level::kWarning;
  if (*scope == 3 || (*scope == 2 && !root)) level = Level::kCannot;
  findings.push_back(
      Finding::Of("ptrace-scope", level,
                  found + (root && *scope < 3 ? ", but CAP_SYS_PTRACE lets this user trace" : ""),
                  *scope == 3 ? "only a restart of the machine can change it" : ""));
}

void CheckResourceLimits(const Machine&, Findings& findings) {
  if (::geteuid() != 0 || HasCapability(kSysResource)) {
    findings.push_back(Finding::Of("resource-limits", Level::kOk,
                                   ::geteuid() == 0
                                       ? "this user has CAP_SYS_RESOURCE"
                                       : "users other than root can dump only their own programs"));
    return;
  }
  findings.push_back(
      Finding::Of("resource-limits", Level::kWarning, "CAP_SYS_RESOURCE is missing"));
}

void CheckMemory(const Machine& machine, Findings& findings) {
  auto memory = ReadMemory(machine.options.root);
  if (!memory) {
    findings.push_back(
        Finding::Of("host-memory", Level::kWarning, "/proc/meminfo does not say how much is free"));
    return;
  }
  const uint64_t available = memory->available_bytes;
  std::string found = fmt::format("{} MiB available", available >> 20);
  const uint64_t all = machine.gpu_bytes(false), used = machine.gpu_bytes(true);
  Level level = Level::kOk;
  if (available < all) {
    level = available < used ? Level::kWarning : Level::kNote;
    found += fmt::format("; the GPUs have {} MiB, of which {} MiB are used", all >> 20, used >> 20);
  }
  findings.push_back(Finding::Of("host-memory", level, found));
}

void CheckHugePages(const Machine& machine, Findings& findings) {
  auto enabled = ReadHugePagePolicy(machine.options.root, "enabled");
  auto shared = ReadHugePagePolicy(machine.options.root, "shmem_enabled");
  std::string found = fmt::format("enabled: {}, shmem_enabled: {}", enabled.value_or("unknown"),
                                  shared.value_or("unknown"));
  if (shared == "deny") {
    findings.push_back(Finding::Of(
        "huge-pages", Level::kWarning, found,
        "`sudo sh -c 'echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled'`"));
  } else if (enabled == "always") {
    findings.push_back(Finding::Of("huge-pages", Level::kOk, found));
  } else {
    findings.push_back(Finding::Of("huge-pages", Level::kNote, found, KindOf("huge-pages").fix));
  }
  auto memory = ReadMemory(machine.options.root);
  if (!memory) return;
  const uint64_t page = memory->huge_page_bytes;
  const bool many = page != 0 && memory->huge_pages_free > kManyReserved / page;
  findings.push_back(
      Finding::Of("reserved-huge-pages", many ? Level::kWarning : Level::kOk,
                  fmt::format("{} pages of {} KiB reserved, {} of them unused", memory->huge_pages,
                              page >> 10, memory->huge_pages_free)));
}

void CheckMemlock(const Machine&, Findings& findings) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    findings.push_back(Finding::Of("memlock", Level::kOk, "no limit"));
    return;
  }
  const bool little = limit.rlim_cur < kLittleMemlock;
  findings.push_back(Finding::Of("memlock", little ? Level::kNote : Level::kOk,
                                 fmt::format("{} KiB", limit.rlim_cur >> 10),
                                 little ? KindOf("memlock").fix : ""));
}

}  // namespace stasis::health
