#include "base/secret.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

namespace stasis {
namespace {

class SecretTest : public ::testing::Test {
 protected:
  SecretTest() {
    char name[] = "/tmp/stasis-secret-test.XXXXXX";
    paths_.data = ::mkdtemp(name);
  }
  ~SecretTest() override { (void)RemoveTree(paths_.data); }

  Error ReadError() {
    auto key = FindBlockSecret(paths_);
    return key ? Error{Code::kOk} : key.error();
  }

  Paths paths_;
};

TEST_F(SecretTest, IsCreatedOnceForItsUserOnly) {
  auto none = FindBlockSecret(paths_);
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
  EXPECT_FALSE(PathExists(SecretPath(paths_))) << "looking for it must not create it";
  auto first = BlockSecretOf(paths_);
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_EQ(*BlockSecretOf(paths_), *first);
  EXPECT_EQ(**FindBlockSecret(paths_), *first);
  struct stat st;
  ASSERT_EQ(::stat(SecretPath(paths_).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_EQ(ListDir(paths_.data)->size(), 1u) << "a temporary file is left";
}

TEST_F(SecretTest, IsRefusedIfAnotherUserMayHaveReadOrWrittenIt) {
  ASSERT_TRUE(BlockSecretOf(paths_));
  const std::string path = SecretPath(paths_);
  for (mode_t mode : {0640, 0604, 0620, 0602}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    Error error = ReadError();
    EXPECT_EQ(error.code, Code::kPermissionDenied);
    EXPECT_NE(error.message.find("accessible to other users"), std::string::npos) << error.message;
    EXPECT_FALSE(BlockSecretOf(paths_)) << "nothing may be written with it either";
  }
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadError().code, Code::kOk);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    EXPECT_EQ(ReadError().code, Code::kPermissionDenied);
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  }
  ASSERT_EQ(::rename(path.c_str(), (path + ".away").c_str()), 0);
  ASSERT_EQ(::symlink((path + ".away").c_str(), path.c_str()), 0);
  EXPECT_NE(ReadError().code, Code::kOk) << "a link is not followed";
}

TEST_F(SecretTest, ASecretOfAnotherLengthIsDamaged) {
  ASSERT_TRUE(WriteFileDurably(SecretPath(paths_), "short"));
  EXPECT_EQ(ReadError().code, Code::kDataLoss);
}

// The naming secret of a master key changes names only; the origin of images keeps its secret.
TEST_F(SecretTest, AJoinedSecretIsForNamesOnly) {
  BlockSecret joined{};
  joined[0] = 1;
  auto own = BlockSecretOf(paths_);
  ASSERT_TRUE(own);
  EXPECT_EQ(*NamingSecretOf(paths_), *own);
  EXPECT_FALSE(FindJoinedSecret(paths_)->has_value());
  EXPECT_TRUE(*JoinNamingSecret(paths_, joined));
  EXPECT_FALSE(*JoinNamingSecret(paths_, joined)) << "it is the same already";
  EXPECT_EQ(*NamingSecretOf(paths_), joined);
  EXPECT_EQ(*BlockSecretOf(paths_), *own);
  struct stat st;
  ASSERT_EQ(::stat(NamingSecretPath(paths_).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  joined[0] = 2;
  EXPECT_TRUE(*JoinNamingSecret(paths_, joined));
  EXPECT_EQ(*NamingSecretOf(paths_), joined);
  ASSERT_TRUE(RemoveFile(NamingSecretPath(paths_)));
  EXPECT_EQ(*NamingSecretOf(paths_), *own);
}

// If the naming secret cannot be used, a dump must fail and not silently use names of `secret.key`.
TEST_F(SecretTest, AnUnusableJoinedSecretIsAnError) {
  ASSERT_TRUE(JoinNamingSecret(paths_, BlockSecret{}));
  ASSERT_EQ(::chmod(NamingSecretPath(paths_).c_str(), 0644), 0);
  auto names = NamingSecretOf(paths_);
  ASSERT_FALSE(names);
  EXPECT_EQ(names.error().code, Code::kPermissionDenied);
  EXPECT_NE(names.error().message.find("names.key is accessible"), std::string::npos);
  EXPECT_FALSE(JoinNamingSecret(paths_, BlockSecret{})) << "another user may know the secret";
  ASSERT_TRUE(WriteFileDurably(NamingSecretPath(paths_), "short"));
  EXPECT_EQ(NamingSecretOf(paths_).error().code, Code::kDataLoss);
}

}  // namespace
}  // namespace stasis
