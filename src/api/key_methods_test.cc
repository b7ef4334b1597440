#include <gtest/gtest.h>

#include "api/methods.h"
#include "base/file.h"
#include "base/secret.h"
#include "store/image_testing.h"

namespace stasis::api {
namespace {

using store::testing::TempStore;

class KeyMethods : public ::testing::Test {
 protected:
  KeyMethods() { call_.paths.data = folder_.path(); }

  TempStore folder_;
  Call call_;
};

TEST_F(KeyMethods, AKeyIsCreatedShownAndJoined) {
  EXPECT_EQ(ShowKey(call_, {}).error().code, Code::kNotFound);
  EXPECT_EQ(JoinKey(call_, {}).error().code, Code::kNotFound);
  auto created = CreateKey(call_, {});
  ASSERT_TRUE(created) << created.error().ToString();
  EXPECT_EQ(created->path(), folder_ / "stasis-key");
  auto shown = ShowKey(call_, {});
  ASSERT_TRUE(shown) << shown.error().ToString();
  EXPECT_EQ(shown->key_id(), created->key_id());
  EXPECT_EQ(shown->source(), "file");
  EXPECT_EQ(shown->from(), created->path());
  EXPECT_FALSE(shown->joined());
  EXPECT_TRUE(JoinKey(call_, {})->changed());
  EXPECT_FALSE(JoinKey(call_, {})->changed());
  EXPECT_TRUE(ShowKey(call_, {})->joined());
  EXPECT_EQ(CreateKey(call_, {}).error().code, Code::kAlreadyExists);
}

TEST_F(KeyMethods, NoAnswerContainsTheKey) {
  ASSERT_TRUE(CreateKey(call_, {}));
  const std::string text = *ReadFile(folder_ / "stasis-key");
  const std::string key = text.substr(text.find("stasis-key-1 ") + 13, 64);
  for (const char* method : {"ShowKey", "JoinKey"}) {
    auto answer = CallMethod(call_, method, "");
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_EQ(answer->find(key.substr(0, 16)), answer->npos) << method;
  }
}

TEST_F(KeyMethods, ARelativePathIsRefused) {
  v1::CreateKeyRequest request;
  request.set_file("key");
  EXPECT_EQ(CreateKey(call_, request).error().code, Code::kInvalidArgument);
}

// With `keys.command`, that command prints the key, so a key in the default file would not be used.
TEST_F(KeyMethods, NoDefaultFileIsCreatedBesideACommand) {
  call_.settings.key_command = "true";
  EXPECT_EQ(ExitCode(CreateKey(call_, {}).error()), 2);
  v1::CreateKeyRequest request;
  request.set_file(folder_ / "mine");
  EXPECT_TRUE(CreateKey(call_, request));
}

TEST_F(KeyMethods, TheyRunWithoutTheRightsForCriu) {
  for (const char* method : {"CreateKey", "ShowKey", "JoinKey"}) {
    EXPECT_TRUE(TraitsOf(method, "")->drops_rights) << method;
  }
}

}  // namespace
}  // namespace stasis::api
