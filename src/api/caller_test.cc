#include "api/caller.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

TEST(CallerTest, ANameWithAZeroByteIsRefused) {
  ASSERT_TRUE(UserNamed("root"));
  auto forged = UserNamed(std::string("root\0.example.com", 17));
  ASSERT_FALSE(forged);
  EXPECT_EQ(forged.error().code, Code::kPermissionDenied);
}

}  // namespace
}  // namespace stasis::api
