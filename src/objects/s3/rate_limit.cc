#include "objects/s3/rate_limit.h"

#include <algorithm>

namespace stasis::objects::s3 {
namespace {

constexpr std::chrono::milliseconds kMadeUpFor{100};
constexpr size_t kMinPieceBytes = 1024;

}  // namespace

void RateLimit::Take(TimePoint now, size_t bytes) {
  if (bytes_per_second_ == 0) return;
  const std::chrono::duration<double> span(static_cast<double>(bytes) /
                                           static_cast<double>(bytes_per_second_));
  free_at_ = std::max(free_at_, now - kMadeUpFor) +
             std::chrono::duration_cast<Deadline::Clock::duration>(span);
}

std::chrono::milliseconds RateLimit::WaitAt(TimePoint now) const {
  if (Allows(now)) return std::chrono::milliseconds(0);
  return std::chrono::ceil<std::chrono::milliseconds>(free_at_ - now);
}

size_t RateLimit::PieceBytes(size_t most) const {
  if (bytes_per_second_ == 0) return most;
  const uint64_t bytes = std::max<uint64_t>(bytes_per_second_ / 10, kMinPieceBytes);
  return std::min<uint64_t>(bytes, most);
}

}  // namespace stasis::objects::s3
