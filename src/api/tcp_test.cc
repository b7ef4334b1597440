#include "api/tcp.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "base/file.h"

namespace {

// Called once, after the next fstat() of this program. It may change the result of that call.
std::function<void(struct stat&)> after_fstat;

}  // namespace

extern "C" int fstat(int fd, struct stat* st) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH));
  if (auto run = std::exchange(after_fstat, nullptr)) run(*st);
  return result;
}

namespace stasis::api {
namespace {

class ReadTlsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(dir_), nullptr);
    path_ = std::string(dir_) + "/key.pem";
    ASSERT_TRUE(WriteFileDurably(path_, "the key"));
  }
  void TearDown() override {
    after_fstat = nullptr;
    EXPECT_TRUE(RemoveTree(dir_));
  }

  char dir_[40] = "/tmp/stasis-tls-file-test-XXXXXX";
  std::string path_;
};

TEST_F(ReadTlsFileTest, ReadsTheFileThatWasChecked) {
  const std::string other = path_ + ".other";
  ASSERT_TRUE(WriteFileDurably(other, "another key"));
  after_fstat = [&](struct stat&) { std::rename(other.c_str(), path_.c_str()); };
  auto text = ReadTlsFile("daemon.tls_key", path_, true);
  ASSERT_TRUE(text) << text.error().ToString();
  EXPECT_EQ(*text, "the key");
}

TEST_F(ReadTlsFileTest, AKeyThatOthersCanReadIsRefused) {
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  auto text = ReadTlsFile("daemon.tls_key", path_, true);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kPermissionDenied);
  EXPECT_EQ(text.error().hint, "chmod 600 " + path_);
  EXPECT_TRUE(ReadTlsFile("daemon.tls_cert", path_, false));
}

TEST_F(ReadTlsFileTest, AKeyOfAnotherUserIsRefused) {
  const uid_t other = ::geteuid() + 1;
  after_fstat = [&](struct stat& st) { st.st_uid = other; };
  auto text = ReadTlsFile("daemon.tls_key", path_, true);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kPermissionDenied);
  EXPECT_NE(text.error().message.find("belongs to user " + std::to_string(other)),
            std::string::npos)
      << text.error().message;
  // A certificate is not secret.
  after_fstat = [&](struct stat& st) { st.st_uid = other; };
  EXPECT_TRUE(ReadTlsFile("daemon.tls_cert", path_, false));
}

TEST_F(ReadTlsFileTest, AKeyOfRootIsAccepted) {
  after_fstat = [](struct stat& st) { st.st_uid = 0; };
  EXPECT_TRUE(ReadTlsFile("daemon.tls_key", path_, true));
}

}  // namespace
}  // namespace stasis::api
