#include "address_space.h"

#include <algorithm>

namespace softgpu {

bool AddressSpace::Free(uint64_t address, uint64_t size) const {
  if (address < kAddressBase || address + size > kAddressEnd || address + size < address)
    return false;
  auto next = reserved_.lower_bound(address);
  if (next != reserved_.end() && next->first < address + size) return false;
  return next == reserved_.begin() || std::prev(next)->first + std::prev(next)->second <= address;
}

uint64_t AddressSpace::Reserve(uint64_t size, uint64_t alignment, uint64_t hint) {
  alignment = std::max<uint64_t>(alignment, kPage);
  if (size == 0 || size > kAddressEnd - kAddressBase) return 0;
  if (hint != 0 && hint % alignment == 0 && Free(hint, size)) {
    reserved_[hint] = size;
    return hint;
  }
  uint64_t at = RoundUp(cursor_, alignment);
  for (bool wrapped = false;;) {
    if (at + size > kAddressEnd) {
      if (wrapped) return 0;
      wrapped = true;
      at = RoundUp(kAddressBase, alignment);
      continue;
    }
    if (Free(at, size)) break;
    auto after = reserved_.lower_bound(at + size);
    const auto& blocker = *std::prev(after);
    at = RoundUp(blocker.first + blocker.second + kPage, alignment);
  }
  reserved_[at] = size;
  cursor_ = at + size + kPage;
  return at;
}

bool AddressSpace::Release(uint64_t address, uint64_t size) {
  auto it = reserved_.find(address);
  if (it == reserved_.end() || it->second != size) return false;
  reserved_.erase(it);
  return true;
}

bool AddressSpace::Covers(uint64_t address, uint64_t size) const {
  auto it = reserved_.upper_bound(address);
  if (it == reserved_.begin()) return false;
  --it;
  return address + size <= it->first + it->second;
}

}  // namespace softgpu
