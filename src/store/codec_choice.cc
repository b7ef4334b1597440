#include "store/codec_choice.h"

#include <algorithm>

namespace stasis::store {

namespace {

// The speed of the storage is unknown before this number of writes.
constexpr uint64_t kLeastWrites = 4;

// Smaller writes go to the page cache: their times do not measure the storage.
constexpr size_t kLeastTimed = 256 << 10;

// While compression does not save time, it is tried occasionally, because the next data may
// compress better. Trials take at most this share of the time spent on writing.
constexpr double kTrials = 1.0 / 64;

// While compression saves time, one in this number of extents is stored uncompressed, to measure
// the storage, and one is compressed with the other codec.
constexpr uint64_t kOther = 64;

// Weights of the latest measurement in the averages. The weight for compression is large, because
// the next data may compress much better or worse.
constexpr double kLatestCompressed = 0.25;
constexpr double kLatestWrite = 1.0 / 16;  // small: the time of a write depends on all threads

void Move(double& average, double latest, double weight) { average += (latest - average) * weight; }

}  // namespace

// Returns the seconds that compression saves a thread for each byte.
double CodecChoice::Gain(const Seen& seen) const {
  return write_seconds_per_byte_ * (1 - seen.ratio) - seen.seconds_per_byte;
}

std::optional<Codec> CodecChoice::Next(size_t bytes) {
  switch (asked_) {
    case Compression::kNone:
      return std::nullopt;
    case Compression::kLz4:
      return Codec::kLz4;
    case Compression::kZstd:
      return Codec::kZstd;
    case Compression::kAuto:
      break;
  }
  std::lock_guard lock(mutex_);
  if (writes_ < kLeastWrites) return std::nullopt;
  const auto& best = *std::max_element(
      seen_.begin(), seen_.end(), [&](const Seen& a, const Seen& b) { return Gain(a) < Gain(b); });
  if (Gain(best) > 0) {
    const uint64_t turn = ++compressed_ % kOther;
    if (turn == 0) return std::nullopt;
    return turn == kOther / 2 ? seen_[best.codec == seen_[0].codec ? 1 : 0].codec : best.codec;
  }
  const Seen& tried = seen_[next_trial_];
  const double cost = -Gain(tried) * static_cast<double>(bytes);
  if (tried_seconds_ + cost > written_seconds_ * kTrials) return std::nullopt;
  tried_seconds_ += cost;
  next_trial_ = (next_trial_ + 1) % seen_.size();
  return tried.codec;
}

void CodecChoice::Compressed(Codec codec, size_t bytes, size_t stored_bytes, double seconds) {
  if (bytes == 0) return;
  std::lock_guard lock(mutex_);
  auto seen =
      std::find_if(seen_.begin(), seen_.end(), [&](const Seen& one) { return one.codec == codec; });
  if (seen == seen_.end()) return;
  const double weight = seen->measured ? kLatestCompressed : 1;
  Move(seen->seconds_per_byte, seconds / static_cast<double>(bytes), weight);
  Move(seen->ratio, static_cast<double>(stored_bytes) / static_cast<double>(bytes), weight);
  seen->measured = true;
}

void CodecChoice::Written(size_t stored_bytes, double seconds) {
  if (stored_bytes < kLeastTimed) return;
  std::lock_guard lock(mutex_);
  Move(write_seconds_per_byte_, seconds / static_cast<double>(stored_bytes),
       writes_ == 0 ? 1 : std::max(kLatestWrite, 1.0 / static_cast<double>(writes_ + 1)));
  ++writes_;
  written_seconds_ += seconds;
}

}  // namespace stasis::store
