// A growing array of plain structs. std::vector would bring a runtime library into the program.
//
// A caller that adds an entry must handle a false result: it makes the program's call fail, or
// notes a blocker. An entry must not get lost.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace stasis::agent {

template <class T>
class Vector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // There is no destructor: global vectors live as long as the program, and others are freed by
  // Free.
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }

  // Makes room for `room` elements in total. Reserve, Insert and Push return false and change
  // nothing if host memory cannot be allocated.
  bool Reserve(size_t room) {
    if (room <= room_) return true;
    size_t wanted = room_ < 8 ? 8 : room_ * 2;
    if (wanted < room) wanted = room;
    auto* grown = static_cast<T*>(realloc(static_cast<void*>(data_), wanted * sizeof(T)));
    if (grown == nullptr) return false;
    data_ = grown;
    room_ = wanted;
    return true;
  }
  bool Insert(size_t at, const T& value) {
    if (!Reserve(size_ + 1)) return false;
    memmove(static_cast<void*>(data_ + at + 1), data_ + at, (size_ - at) * sizeof(T));
    data_[at] = value;
    ++size_;
    return true;
  }
  bool Push(const T& value) { return Insert(size_, value); }
  void Erase(size_t at) {
    memmove(static_cast<void*>(data_ + at), data_ + at + 1, (size_ - at - 1) * sizeof(T));
    --size_;
  }
  void Clear() { size_ = 0; }
  // Called in a forked child. Another thread of the parent may have been changing the array, and
  // may have held the allocator's lock, so the memory is not freed.
  void AbandonAfterFork() {
    data_ = nullptr;
    size_ = room_ = 0;
  }
  void Free() {
    free(data_);
    data_ = nullptr;
    size_ = room_ = 0;
  }
  // Returns the index of the first element for which `matches(element)` is true, or size().
  template <class F>
  size_t FindIf(F matches) const {
    size_t i = 0;
    while (i < size_ && !matches(data_[i])) ++i;
    return i;
  }
  // Erases all elements for which `matches(element)` is true. Calls `matches` once for each
  // element.
  template <class F>
  void EraseIf(F matches) {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      if (!matches(data_[i])) data_[kept++] = data_[i];
    }
    size_ = kept;
  }
  // Returns the index of the first element for which `less(element)` is false.
  template <class F>
  size_t LowerBound(F less) const {
    size_t low = 0, high = size_;
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (less(data_[middle])) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t room_ = 0;
};

}  // namespace stasis::agent
