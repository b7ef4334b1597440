// The calls that wait for a change of the picture of shared GPUs. They are answered at most a few
// times a second, however often the picture changes.
//
// Safe to use from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "base/thread.h"

namespace stasis::api {

class ShareWaiters {
 public:
  struct Picture {
    // Returns the current version.
    std::function<uint64_t()> version;
    // Calls the function once, from any thread, when the version is not this one any more.
    std::function<void(uint64_t version, std::function<void()> changed)> on_change;
  };

  static Result<std::unique_ptr<ShareWaiters>> Start(
      Picture picture, std::chrono::milliseconds interval = std::chrono::milliseconds(250));
  // Waiting calls are not answered.
  ~ShareWaiters();

  // Returns a number for Add.
  uint64_t NewNumber();
  // Calls `changed` once, from another thread, when the version is not `version` any more.
  void Add(uint64_t number, uint64_t version, std::function<void()> changed);
  // The call has ended. Its function may be running.
  void Remove(uint64_t number);

  size_t count() const;

 private:
  struct Waiting {
    uint64_t version;
    std::function<void()> changed;
  };
  // Outlives the object if the picture does not change any more.
  struct State {
    mutable std::mutex mutex;
    std::condition_variable event;
    std::map<uint64_t, Waiting> waiting;
    uint64_t last_number = 0;
    bool changed = false;     // look at all that wait
    bool registered = false;  // with the picture, for this version:
    uint64_t version = 0;
    bool ending = false;
  };

  ShareWaiters(Picture picture, std::chrono::milliseconds interval)
      : picture_(std::move(picture)), interval_(interval) {}
  void Run();
  void Register(uint64_t version);
  void AnswerChanged();

  const Picture picture_;
  const std::chrono::milliseconds interval_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  Thread thread_;
};

}  // namespace stasis::api
