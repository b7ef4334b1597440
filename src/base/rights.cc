#include "base/rights.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "base/file.h"

namespace stasis {
namespace {

constexpr uint64_t Bit(Right right) { return uint64_t{1} << static_cast<int>(right); }

struct Sets {
  uint64_t effective = 0, permitted = 0, inheritable = 0;
};

Sets Read() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return {};
  auto both = [&](auto member) {
    return uint64_t{data[1].*member} << 32 | uint64_t{data[0].*member};
  };
  return {both(&__user_cap_data_struct::effective), both(&__user_cap_data_struct::permitted),
          both(&__user_cap_data_struct::inheritable)};
}

// Dropping capabilities is always permitted.
void Keep(uint64_t rights) {
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2];
  for (int word : {0, 1}) {
    const auto bits = static_cast<uint32_t>(rights >> (32 * word));
    data[word] = {bits, bits, bits};
  }
  ::syscall(SYS_capset, &header, data);
}

}  // namespace

bool TracingIsRestricted() {
  auto scope = ReadFile("/proc/sys/kernel/yama/ptrace_scope", 64);
  return scope && std::atoi(scope->c_str()) > 0;
}

void HoldRights() {
  if (::geteuid() == 0) return;
  uint64_t wanted = Bit(Right::kCheckpointRestore) | Bit(Right::kNetwork);
  if (TracingIsRestricted()) wanted |= Bit(Right::kTrace);
  Keep(Read().permitted & wanted);
}

bool HasRight(Right right) { return (Read().effective & Bit(right)) != 0; }

void PassRightsOn(PassedRights passed) {
  if (::geteuid() == 0) return;
  for (Right right : {Right::kCheckpointRestore, Right::kTrace, Right::kNetwork}) {
    if (right == Right::kTrace && !passed.trace) continue;
    if (right == Right::kNetwork && !passed.network) continue;
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, static_cast<int>(right), 0, 0);
  }
}

void DropRights() {
  if (::geteuid() != 0) Keep(0);
}

}  // namespace stasis
