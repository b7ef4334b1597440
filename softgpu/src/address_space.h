// Device addresses: one range of this process's address space, at a place where the kernel never
// puts anything by itself, so that a restore can map the same addresses again. Nothing is mapped by
// this.
#pragma once

#include <cstdint>
#include <map>

#include "base.h"

namespace softgpu {

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer knows only parts of the address space.
inline constexpr uint64_t kAddressBase = 0x10'0000'0000;
inline constexpr uint64_t kAddressEnd = 0x70'0000'0000;
#else
inline constexpr uint64_t kAddressBase = 0x2000'0000'0000;
inline constexpr uint64_t kAddressEnd = 0x4000'0000'0000;
#endif
// The process header (process_header.h) has the page before.
inline constexpr uint64_t kHeaderAddress = kAddressBase - kPage;

class AddressSpace {
 public:
  // 0 when there is no room. `hint` is used when it is free. Reservations keep a page's distance,
  // so that running over the end of one faults.
  uint64_t Reserve(uint64_t size, uint64_t alignment, uint64_t hint = 0);
  // False when [address, address + size) is no reservation.
  bool Release(uint64_t address, uint64_t size);
  // Whether the range lies within one reservation.
  bool Covers(uint64_t address, uint64_t size) const;

 private:
  bool Free(uint64_t address, uint64_t size) const;

  std::map<uint64_t, uint64_t> reserved_;  // start to size
  uint64_t cursor_ = kAddressBase;         // freed addresses are used again as late as possible
};

}  // namespace softgpu
