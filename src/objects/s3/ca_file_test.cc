#include "objects/s3/ca_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"

namespace stasis::objects::s3 {
namespace {

using ::testing::HasSubstr;

class CaFileTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(ReplaceFile(file_, "certificates")); }
  void TearDown() override { (void)RemoveFile(file_); }

  const std::string file_ = ::testing::TempDir() + "ca-file-test.pem";
  const std::string absent_ = ::testing::TempDir() + "ca-file-test-absent.pem";
};

TEST_F(CaFileTest, IsTheSettingBeforeTheVariable) {
  EXPECT_EQ(FindCaFile(file_, absent_), file_);
  EXPECT_EQ(FindCaFile("", file_), file_);
}

TEST_F(CaFileTest, IsTheFirstOfTheSystemThatExists) {
  const char* system[] = {absent_.c_str(), file_.c_str()};
  EXPECT_EQ(FindCaFile("", "", system), file_);
}

TEST_F(CaFileTest, IsReportedIfItCannotBeRead) {
  const char* system[] = {file_.c_str()};
  const auto setting = FindCaFile(absent_, "", system);
  ASSERT_FALSE(setting);
  EXPECT_EQ(setting.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(setting.error().message, HasSubstr(absent_ + " cannot be read: No such file"));
  const auto variable = FindCaFile("", absent_, system);
  ASSERT_FALSE(variable);
  EXPECT_THAT(variable.error().message, HasSubstr("which SSL_CERT_FILE names"));
}

TEST_F(CaFileTest, IsReportedIfThereIsNone) {
  const char* system[] = {absent_.c_str()};
  const auto found = FindCaFile("", "", system);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(found.error().message, HasSubstr("no file of CA certificates"));
  EXPECT_THAT(found.error().hint, HasSubstr("ca-certificates"));
}

}  // namespace
}  // namespace stasis::objects::s3
