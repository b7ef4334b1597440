#include "api/methods.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

TEST(MethodsTest, AStepThatOnlyReadsIsNoOperation) {
  for (const char* step :
       {"state", "restore-tid", "lock", "checkpoint", "restore", "unlock", "toggle", "none"}) {
    v1::GpuStepRequest request;
    request.set_target("4711");
    request.set_step(step);
    const auto traits = TraitsOf("GpuStep", request.SerializeAsString());
    ASSERT_TRUE(traits);
    const bool reads = step == std::string("state") || step == std::string("restore-tid");
    EXPECT_EQ(traits->operation, !reads) << step;
    EXPECT_TRUE(traits->drops_rights) << step;
  }
  EXPECT_TRUE(TraitsOf("GpuStep", "not a message")->operation);
}

TEST(MethodsTest, AnUnknownMethodHasNoTraits) { EXPECT_FALSE(TraitsOf("Explode", "")); }

}  // namespace
}  // namespace stasis::api
