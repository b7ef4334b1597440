// A fake of CRIU and its plugin. It sends requests in order and acts as CRIU does after each
// answer. Its calls are "plugin Pause", "plugin Commit", …; a fault there kills CRIU before the
// request.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "criu/plugin_link.h"
#include "gpu_state/testing/call_log.h"

namespace stasis::fakes {

class FakePlugin final : public criu::PluginLink {
 public:
  using Kind = criu::PluginRequest::Kind;
  struct Step {
    std::string name;
    criu::PluginRequest request;
    // CRIU's actions after an accepted and after a refused request.
    std::function<void()> accepted = {};
    std::function<void()> refused = {};
  };

  FakePlugin(CallLog& log, const std::string& images)
      : log_(log), images_(::open(images.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

  // Appends a step. `make` is called when CRIU reaches it.
  void Add(std::function<Step()> make) { steps_.push_back(std::move(make)); }
  void Add(Step step) {
    Add([step = std::move(step)] { return step; });
  }
  // Skips all further requests, except the last one, fini().
  void Fail() { at_ = steps_.size() - 1; }
  void Exit() {
    exited_ = true;
    EXPECT_EQ(::eventfd_write(exit_.get(), 1), 0);
  }
  const std::string& refusal() const { return refusal_; }

  Result<criu::PluginRequest> Next(const Deadline&) override {
    if (exited_ || at_ == steps_.size()) return Exited();
    now_ = steps_[at_++]();
    auto next = log_.Run("plugin", now_->name,
                         [&]() -> Result<criu::PluginRequest> { return now_->request; });
    if (!next) return Exited();
    pending_ = true;
    return next;
  }
  bool pending() const override { return pending_; }
  void Accept() override { Answer("Accept", now_->accepted); }
  void AnswerNoGpu() override { Answer("NoGpu", {}); }
  void Refuse(const Error& why) override {
    refusal_ = why.ToString();
    Answer(
        "Refuse", now_->refused ? now_->refused : [this] { Fail(); });
  }
  Status LetRun(const std::vector<pid_t>&, const Deadline&) override {
    (void)log_.Run("plugin", "LetRun", []() -> Status { return {}; });
    return {};
  }
  Status AwaitExit(const Deadline&) override {
    if (exited_) return {};
    return stasis::Fail(Code::kDeadlineExceeded, "CRIU lives");
  }
  int exit_fd() const override { return exit_.get(); }
  int request_fd() const override { return -1; }
  int images_fd() const override { return images_.get(); }
  process::HostPid criu() const override { return {1}; }

 private:
  tl::unexpected<Error> Exited() {
    Exit();
    return stasis::Fail(Code::kUnavailable, "CRIU has exited");
  }
  void Answer(const std::string& what, const std::function<void()>& act) {
    EXPECT_TRUE(pending_) << what << " without a request";
    pending_ = false;
    (void)log_.Run("plugin", what + " " + now_->name, []() -> Status { return {}; });
    if (act) act();
  }

  CallLog& log_;
  const UniqueFd images_;
  const UniqueFd exit_{::eventfd(0, EFD_CLOEXEC)};
  std::vector<std::function<Step()>> steps_;
  size_t at_ = 0;
  std::optional<Step> now_;
  bool pending_ = false;
  std::atomic<bool> exited_{false};
  std::string refusal_;
};

}  // namespace stasis::fakes
