// The API's entry. While it is closed, newcomers wait there; closing it waits for those inside.
#pragma once

#include "base.h"

namespace softgpu {

class Gate {
 public:
  void Enter();
  void Leave();
  // For calls that only wait: stand at a closed gate, but do not hold up its closing.
  void PassUncounted();

  void Close() { closed_.store(1); }
  void Open();
  bool empty() const { return inside_.load() == 0; }
  // Changes whenever somebody leaves a closed gate; `progress` is also what finished work changes.
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
