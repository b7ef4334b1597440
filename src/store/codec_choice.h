// Chooses the codec of an extent. `auto` measures while the dump runs: it compresses as long as
// that costs a thread less time than it saves in writing. If compression is slower than the
// storage, extents are stored as they are.
//
// The caller measures and reports all times. Safe to use from several threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "store/codec.h"

namespace stasis::store {

class CodecChoice {
 public:
  explicit CodecChoice(Compression asked) : asked_(asked) {}

  // Returns the codec for the next extent, of so many logical bytes; nullopt: none.
  std::optional<Codec> Next(size_t bytes);
  // Reports the time that one thread took to compress. `stored_bytes` equals `bytes` if it saved
  // nothing.
  void Compressed(Codec codec, size_t bytes, size_t stored_bytes, double seconds);
  // Reports the time that one thread took to write.
  void Written(size_t stored_bytes, double seconds);

 private:
  // Recent averages of one codec.
  struct Seen {
    Codec codec;
    double seconds_per_byte;
    double ratio;  // stored bytes by bytes
    bool measured = false;
  };
  double Gain(const Seen& seen) const;

  const Compression asked_;
  std::mutex mutex_;  // guards what follows
  double write_seconds_per_byte_ = 0;
  uint64_t writes_ = 0;
  double written_seconds_ = 0;
  double tried_seconds_ = 0;  // cost of all trials
  uint64_t compressed_ = 0;   // while it paid
  size_t next_trial_ = 0;
  // Until the first measurement: a core of 2020, and data that compresses by half.
  std::array<Seen, 2> seen_{{{Codec::kLz4, 1 / 800e6, 0.6}, {Codec::kZstd, 1 / 400e6, 0.5}}};
};

}  // namespace stasis::store
