// Device addresses: one range of this process's address space, in a region where the kernel places
// nothing by itself, so that a restore can map the same addresses again. This class only records
// which addresses are reserved. It maps nothing.
#pragma once

#include <cstdint>
#include <map>

#include "base.h"

namespace softgpu {

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer supports only parts of the address space.
inline constexpr uint64_t kAddressBase = 0x10'0000'0000;
inline constexpr uint64_t kAddressEnd = 0x70'0000'0000;
#else
inline constexpr uint64_t kAddressBase = 0x2000'0000'0000;
inline constexpr uint64_t kAddressEnd = 0x4000'0000'0000;
#endif
// The page before the range holds the process header (process_header.h).
inline constexpr uint64_t kHeaderAddress = kAddressBase - kPage;
// The same of a process that uses HIP, for the stand-in of CRIU's plugin only (criu/).
inline constexpr uint64_t kHipHeaderAddress = kHeaderAddress - kPage;

class AddressSpace {
 public:
  // Reserves addresses, at `hint` if that range is free. Returns 0 if no free range is large
  // enough. Reservations are at least a page apart, so that an access beyond the end of one faults.
  uint64_t Reserve(uint64_t size, uint64_t alignment, uint64_t hint = 0);
  // Returns false if [address, address + size) is not a reservation.
  bool Release(uint64_t address, uint64_t size);
  // Returns true if the range lies within one reservation.
  bool Covers(uint64_t address, uint64_t size) const;

 private:
  bool Free(uint64_t address, uint64_t size) const;

  std::map<uint64_t, uint64_t> reserved_;  // start to size
  uint64_t cursor_ = kAddressBase;         // advances, so that freed addresses are reused late
};

}  // namespace softgpu
