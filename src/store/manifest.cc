#include "store/manifest.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/file.h"
#include "base/page_size.h"
#include "store/clock.h"

namespace stasis::store {

uint64_t Manifest::TotalBytes() const {
  uint64_t total = 0;
  for (const File& file : files) total += file.size_bytes;
  for (const Pack& pack : packs) total += pack.used_bytes;
  return total;
}

uint64_t Manifest::AddedBytes() const {
  uint64_t total = TotalBytes();
  for (const Pack& pack : packs) total -= pack.linked ? pack.used_bytes : 0;
  return total;
}

uint64_t ZeroBytes(const std::vector<UnitRun>& runs, uint32_t unit_bytes, uint64_t size_bytes) {
  uint64_t zero = 0;
  ForEachRun(runs, unit_bytes, size_bytes, [&](const UnitRun& run, uint64_t, uint64_t bytes) {
    if (run.is_zero()) zero += bytes;
  });
  return zero;
}

namespace {

uint64_t ClockNs(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<uint64_t>(Ns(now));
}

}  // namespace

Host HostNow() {
  Host host;
  utsname name{};
  if (::uname(&name) == 0) {
    host.name = name.nodename;
    host.kernel_release = name.release;
    host.machine = name.machine;
  }
  if (auto boot_id = ReadFile("/proc/sys/kernel/random/boot_id", 256)) {
    host.boot_id = boot_id->substr(0, boot_id->find('\n'));
  }
  host.page_bytes = PageBytes();
  host.boottime_ns = ClockNs(CLOCK_BOOTTIME);
  host.monotonic_ns = ClockNs(CLOCK_MONOTONIC);
  return host;
}

}  // namespace stasis::store
