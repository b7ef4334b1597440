// Numbers that are found by a name, for very many of them: four to eight bytes each. The names
// themselves are kept elsewhere, and looked up there.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/id128.h"

namespace stasis::store {

class NameTable {
 public:
  static constexpr uint32_t kNone = ~0u;

  explicit NameTable(size_t most = 0)
      : slots_(std::bit_ceil(most + most / 2 + 2), kNone), mask_(slots_.size() - 1) {}

  // The number of that name, or kNone: then what the caller writes here is the name's from now on.
  // `name_of(number)` is the name of a number that was written. No more than `most` names.
  template <class NameOf>
  uint32_t& At(const Id128& name, const NameOf& name_of) {
    return slots_[Place(name, name_of)];
  }
  template <class NameOf>
  uint32_t Find(const Id128& name, const NameOf& name_of) const {
    return slots_[Place(name, name_of)];
  }

 private:
  template <class NameOf>
  size_t Place(const Id128& name, const NameOf& name_of) const {
    size_t at = Id128Hash()(name) & mask_;
    while (slots_[at] != kNone && name_of(slots_[at]) != name) at = (at + 1) & mask_;
    return at;
  }

  std::vector<uint32_t> slots_;
  size_t mask_;
};

}  // namespace stasis::store
