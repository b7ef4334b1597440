// Puts and gets plain objects in parallel, without encryption, hashes or records. Their rates are
// the best that a repository can reach with this machine and this object store.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"
#include "objects/object_store.h"

namespace stasis::bench {

// Not safe to use from two threads at once.
class PlainObjects {
 public:
  // The objects are KEY-0, KEY-1 and so on, each of `object_bytes`; the last may be shorter.
  // `store` must outlive this object.
  PlainObjects(objects::ObjectStore& store, std::string key, uint64_t size_bytes,
               uint64_t object_bytes)
      : store_(store), key_(std::move(key)), size_bytes_(size_bytes), object_bytes_(object_bytes) {}

  uint64_t count() const { return (size_bytes_ + object_bytes_ - 1) / object_bytes_; }
  // Puts all objects with the contents of `memory`, which has size_bytes, `parallel` at a time.
  Status Put(std::span<const char> memory, unsigned parallel, const objects::CallOptions& call);
  // Gets all objects into `memory`, at the offsets from which Put read them.
  Status Get(std::span<char> memory, unsigned parallel, const objects::CallOptions& call);
  // Deletes all objects that a Put may have written.
  Status Delete(const objects::CallOptions& call);

 private:
  Status ForEach(unsigned parallel, const std::function<Status(uint64_t)>& transfer) const;
  std::string KeyOf(uint64_t object) const { return key_ + "-" + std::to_string(object); }
  template <class Memory>
  Memory PartOf(Memory memory, uint64_t object) const;

  objects::ObjectStore& store_;
  const std::string key_;
  const uint64_t size_bytes_;
  const uint64_t object_bytes_;
  bool may_exist_ = false;
};

}  // namespace stasis::bench
