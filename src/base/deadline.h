// A point in monotonic time by which an operation must finish. Children and polls share one
// deadline.
#pragma once

#include <algorithm>
#include <chrono>

namespace stasis {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Never expires.
  Deadline() : at_(Clock::time_point::max()) {}
  static Deadline In(std::chrono::milliseconds span) {
    Deadline d;
    d.at_ = Clock::now() + span;
    return d;
  }
  static Deadline Sooner(const Deadline& a, const Deadline& b) { return a.at_ < b.at_ ? a : b; }

  // Returns a deadline that is `span` later.
  Deadline Plus(Clock::duration span) const {
    Deadline d = *this;
    if (!d.never()) d.at_ += span;
    return d;
  }

  bool never() const { return at_ == Clock::time_point::max(); }
  bool passed() const { return !never() && Clock::now() >= at_; }
  // A timeout for poll(2): remaining milliseconds rounded up, 0 if expired, -1 for no deadline.
  int PollTimeout() const {
    if (never()) return -1;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
  }

 private:
  Clock::time_point at_;
};

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(Deadline::Clock::now() - start_).count();
  }

 private:
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

}  // namespace stasis
