#include "api/share_waiters.h"

#include <vector>

namespace stasis::api {

using Clock = std::chrono::steady_clock;

Result<std::unique_ptr<ShareWaiters>> ShareWaiters::Start(Picture picture,
                                                          std::chrono::milliseconds interval) {
  std::unique_ptr<ShareWaiters> waiters(new ShareWaiters(std::move(picture), interval));
  STASIS_ASSIGN(waiters->thread_, Thread::Start([w = waiters.get()] { w->Run(); }));
  return waiters;
}

ShareWaiters::~ShareWaiters() {
  {
    std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->event.notify_all();
  thread_.Join();
}

uint64_t ShareWaiters::NewNumber() {
  std::lock_guard lock(state_->mutex);
  return ++state_->last_number;
}

void ShareWaiters::Add(uint64_t number, uint64_t version, std::function<void()> changed) {
  {
    std::lock_guard lock(state_->mutex);
    state_->waiting[number] = {version, std::move(changed)};
    // The picture may be newer than this call's already.
    if (!state_->registered || state_->version != version) state_->changed = true;
  }
  state_->event.notify_all();
}

void ShareWaiters::Remove(uint64_t number) {
  std::lock_guard lock(state_->mutex);
  state_->waiting.erase(number);
}

size_t ShareWaiters::count() const {
  std::lock_guard lock(state_->mutex);
  return state_->waiting.size();
}

void ShareWaiters::Run() {
  State& state = *state_;
  Clock::time_point next{};
  std::unique_lock lock(state.mutex);
  while (!state.ending) {
    if (!state.changed || state.waiting.empty()) {
      state.event.wait(lock);
    } else if (Clock::now() < next) {
      state.event.wait_until(lock, next);
    } else {
      next = Clock::now() + interval_;
      state.changed = false;
      lock.unlock();
      AnswerChanged();
      lock.lock();
    }
  }
}

void ShareWaiters::AnswerChanged() {
  const uint64_t version = picture_.version();
  std::vector<std::function<void()>> answers;
  bool must_register = false;
  {
    std::lock_guard lock(state_->mutex);
    std::erase_if(state_->waiting, [&](auto& entry) {
      if (entry.second.version == version) return false;
      answers.push_back(std::move(entry.second.changed));
      return true;
    });
    must_register = !state_->waiting.empty() && (!state_->registered || state_->version != version);
    if (must_register) {
      state_->registered = true;
      state_->version = version;
    }
  }
  for (const auto& answer : answers) answer();
  if (must_register) Register(version);
}

void ShareWaiters::Register(uint64_t version) {
  picture_.on_change(version, [state = state_, version] {
    {
      std::lock_guard lock(state->mutex);
      if (state->version == version) state->registered = false;
      state->changed = true;
    }
    state->event.notify_all();
  });
}

}  // namespace stasis::api
