// A compact hash table from names to numbers, with six to twelve bytes for each entry. It does not
// store the names: a function of the caller returns the name that belongs to a number.
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

  // Returns the slot of a name. If it is kNone, the caller must store the name's number in it.
  // `name_of(number)` returns the name of a stored number. The table holds at most `most` names.
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
