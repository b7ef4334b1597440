// The gate that every call of the API passes. While it is closed, new calls block. A lock closes it
// and then waits until no call is inside (checkpoint_target.cc).
#pragma once

#include "base.h"

namespace softgpu {

class Gate {
 public:
  void Enter();
  void Leave();
  // For calls that only wait for work: they block at a closed gate, but do not delay its closing.
  void PassUncounted();

  void Close() { closed_.store(1); }
  void Open();
  bool empty() const { return inside_.load() == 0; }
  // A futex word that changes whenever a call leaves a closed gate, and whenever work finishes.
  std::atomic<uint32_t> progress{0};
  void Progress() {
    progress.fetch_add(1);
    FutexWake(&progress);
  }

 private:
  void WaitOpen();

  std::atomic<uint32_t> closed_{0};
  std::atomic<uint32_t> inside_{0};
};

inline void Gate::WaitOpen() {
  while (closed_.load() != 0) FutexWait(&closed_, 1, 1000);
}

inline void Gate::Enter() {
  for (;;) {
    inside_.fetch_add(1);
    if (closed_.load() == 0) return;
    Leave();
    WaitOpen();
  }
}

inline void Gate::Leave() {
  inside_.fetch_sub(1);
  if (closed_.load() != 0) Progress();
}

inline void Gate::PassUncounted() { WaitOpen(); }

inline void Gate::Open() {
  closed_.store(0);
  FutexWake(&closed_);
}

}  // namespace softgpu
