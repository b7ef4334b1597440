#include "api/error_message.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

TEST(ErrorMessageTest, KeepsEveryField) {
  const Error error{.code = Code::kDataLoss,
                    .domain = Domain::kCuda,
                    .raw = -7,
                    .message = "a block is damaged",
                    .hint = "take another image",
                    .context = {"read the image", "cannot restore llama"},
                    .not_undone = true};
  const Error decoded = DecodeError(EncodeError(error));
  EXPECT_EQ(decoded.code, error.code);
  EXPECT_EQ(decoded.domain, error.domain);
  EXPECT_EQ(decoded.raw, error.raw);
  EXPECT_EQ(decoded.message, error.message);
  EXPECT_EQ(decoded.hint, error.hint);
  EXPECT_EQ(decoded.context, error.context);
  EXPECT_EQ(decoded.not_undone, error.not_undone);
}

TEST(ErrorMessageTest, FitsIntoATrailer) {
  Error error;
  error.message = std::string(10000, 'm');
  error.hint = std::string(10000, 'h');
  error.context.assign(100, std::string(10000, 'c'));
  const v1::Error message = EncodeError(error);
  EXPECT_LT(message.ByteSizeLong(), 4096u);
  EXPECT_TRUE(message.message().ends_with("m [...]"));
}

TEST(ErrorMessageTest, AnUnknownCodeIsUnknown) {
  v1::Error message;
  message.set_code(4711);
  message.set_domain("of another version");
  EXPECT_EQ(DecodeError(message).code, Code::kUnknown);
}

}  // namespace
}  // namespace stasis::api
