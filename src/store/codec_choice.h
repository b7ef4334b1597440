// Chooses the codec of an extent. `auto` decides by times that are measured during the dump: it
// compresses an extent if a thread needs less time to compress it than it saves by writing fewer
// bytes.
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

  // Returns the codec for the next extent, which has `bytes` logical bytes; nullopt for no
  // compression.
  std::optional<Codec> Next(size_t bytes);
  // Reports the time that one thread took to compress. `stored_bytes` equals `bytes` if compression
  // saved nothing.
  void Compressed(Codec codec, size_t bytes, size_t stored_bytes, double seconds);
  // Reports the time that one thread took to write.
  void Written(size_t stored_bytes, double seconds);

 private:
  // Recent averages of one codec.
  struct Seen {
    Codec codec;
    double seconds_per_byte;
    double ratio;  // stored bytes / bytes
    bool measured = false;
  };
  double Gain(const Seen& seen) const;

  const Compression asked_;
  std::mutex mutex_;  // guards all members below
  double write_seconds_per_byte_ = 0;
  uint64_t writes_ = 0;
  double written_seconds_ = 0;
  double tried_seconds_ = 0;  // cost of all trials
  uint64_t compressed_ = 0;   // extents for which compression saved time
  size_t next_trial_ = 0;
  // Used until the first measurement: typical speeds of a processor of 2020.
  std::array<Seen, 2> seen_{{{Codec::kLz4, 1 / 800e6, 0.6}, {Codec::kZstd, 1 / 400e6, 0.5}}};
};

}  // namespace stasis::store
