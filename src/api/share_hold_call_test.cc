#include "api/share_hold_call.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace stasis::api {
namespace {

v1::HoldShareRequest Begin(const std::string& target, const std::string& method = "Dump") {
  v1::HoldShareRequest request;
  request.mutable_begin()->set_target(target);
  request.mutable_begin()->set_method(method);
  return request;
}
v1::HoldShareRequest End(bool ok) {
  v1::HoldShareRequest request;
  request.mutable_end()->set_ok(ok);
  return request;
}

class ShareHoldCallTest : public ::testing::Test {
 protected:
  ShareHoldCall::Outside Outside() {
    return {
        [](const auto& begin) { return begin.target() == "mine" ? "1000-0/mine" : ""; },
        [this](const std::string& program, const std::string& method, std::function<void()> begun) {
          begun_.push_back(program + " " + method);
          release_ = std::move(begun);
          if (in_begin_) in_begin_();
          return uint64_t{7};
        },
        [this](uint64_t token, bool ok) { ended_.emplace_back(token, ok); },
        [this](bool shared) { answers_.push_back(shared); }};
  }

  std::vector<std::string> begun_;
  std::function<void()> release_, in_begin_;
  std::vector<std::pair<uint64_t, bool>> ended_;
  std::vector<bool> answers_;
  std::optional<ShareHoldCall> call_{std::in_place, Outside()};
};

using Ended = std::vector<std::pair<uint64_t, bool>>;

TEST_F(ShareHoldCallTest, TheCallerWaitsUntilTheProgramIsFree) {
  EXPECT_EQ(call_->Receive(Begin("mine")), false);
  EXPECT_EQ(begun_, std::vector<std::string>{"1000-0/mine Dump"});
  EXPECT_TRUE(answers_.empty());
  release_();
  EXPECT_EQ(answers_, std::vector{true});
  EXPECT_EQ(call_->Receive(End(true)), true);
  EXPECT_EQ(ended_, (Ended{{7, true}}));
}

TEST_F(ShareHoldCallTest, ACallerThatIsKilledHoldsNothing) {
  ASSERT_TRUE(call_->Receive(Begin("mine")));
  release_();
  call_->End(false);
  call_->End(false);
  EXPECT_EQ(ended_, (Ended{{7, false}}));
}

TEST_F(ShareHoldCallTest, ACallerThatIsKilledWhileItWaitsIsNotAnswered) {
  ASSERT_TRUE(call_->Receive(Begin("mine")));
  call_->End(false);
  call_.reset();
  release_();
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(ended_, (Ended{{7, false}}));
}

TEST_F(ShareHoldCallTest, ACallerThatIsKilledAtTheBeginningHoldsNothing) {
  in_begin_ = [this] { call_->End(false); };
  ASSERT_TRUE(call_->Receive(Begin("mine")));
  EXPECT_EQ(ended_, (Ended{{7, false}}));
}

TEST_F(ShareHoldCallTest, AProgramThatTheCallerMayNotManageIsNotHeld) {
  EXPECT_EQ(call_->Receive(Begin("hers")), false);
  EXPECT_EQ(answers_, std::vector{false});
  EXPECT_EQ(call_->Receive(End(true)), true);
  EXPECT_TRUE(begun_.empty());
  EXPECT_TRUE(ended_.empty());
}

TEST_F(ShareHoldCallTest, InvalidRequestsAreRefused) {
  for (const auto& request : {Begin("mine", "Restore"), Begin("mine", ""), Begin(""),
                              Begin(std::string(5000, 'a')), End(true), v1::HoldShareRequest()}) {
    ShareHoldCall call(Outside());
    EXPECT_FALSE(call.Receive(request)) << request.ShortDebugString();
  }
  ASSERT_TRUE(call_->Receive(Begin("mine")));
  EXPECT_FALSE(call_->Receive(Begin("mine"))) << "one call holds one program";
  EXPECT_EQ(begun_.size(), 1u);
}

}  // namespace
}  // namespace stasis::api
