// Which codec a block goes through. With `auto` that is measured while the dump runs: a block is
// compressed while that takes a thread less time than it spares it in writing, both as seen in this
// very dump. So where compression is the slower part, blocks go as they are.
//
// It knows no clock: whoever compresses and writes tells it the times. May be used by several
// threads at once.
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

  // For a block of so many bytes.
  std::optional<Codec> Next(size_t bytes);
  // It took one thread so long; `stored_bytes` equals `bytes` when it saved nothing.
  void Compressed(Codec codec, size_t bytes, size_t stored_bytes, double seconds);
  // A thread waited so long until so many bytes were written.
  void Written(size_t stored_bytes, double seconds);

 private:
  // Of one codec, as lately seen.
  struct Seen {
    Codec codec;
    double seconds_per_byte;
    double ratio;  // stored bytes by bytes
    bool measured = false;
  };
  double Gain(const Seen& seen) const;

  const Compression asked_;
  std::mutex mutex_;  // of what follows
  double write_seconds_per_byte_ = 0;
  uint64_t writes_ = 0;
  double written_seconds_ = 0;
  double tried_seconds_ = 0;  // what trials have cost
  uint64_t compressed_ = 0;   // while it paid
  size_t next_trial_ = 0;
  // Until one was measured: about what one core of 2020 does with data that compresses by half.
  std::array<Seen, 2> seen_{{{Codec::kLz4, 1 / 800e6, 0.6}, {Codec::kZstd, 1 / 400e6, 0.5}}};
};

}  // namespace stasis::store
