#include "repository/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "store/image_testing.h"

namespace stasis::repository {
namespace {

using ::testing::HasSubstr;

class RegistryTest : public ::testing::Test {
 protected:
  static Registration Bucket(const std::string& name) {
    Registration registration;
    registration.name = name;
    registration.location = "s3://bucket/prefix";
    registration.endpoint = "https://s3.example:9000";
    registration.region = "eu-1";
    registration.addressing = "path";
    registration.ca_file = "/etc/ca.pem";
    registration.profile = "work";
    registration.max_bytes_per_second = 5u << 20;
    registration.id.bytes[3] = 7;
    registration.origin_id.bytes[4] = 8;
    registration.trusted = true;
    return registration;
  }

  store::testing::TempStore folder_;
  Paths paths_{.run = folder_.path(), .data = folder_.path()};
};

TEST_F(RegistryTest, WhatIsAddedIsFoundAndListed) {
  EXPECT_TRUE(ListRegistrations(paths_)->empty());
  ASSERT_TRUE(AddRegistration(paths_, Bucket("fleet")));
  Registration folder;
  folder.name = "a";
  folder.location = "/mnt/images";
  folder.encrypted = false;
  folder.id.bytes[0] = folder.origin_id.bytes[0] = 1;
  ASSERT_TRUE(AddRegistration(paths_, folder));
  EXPECT_EQ(*FindRegistration(paths_, "fleet"), Bucket("fleet"));
  EXPECT_EQ(*ListRegistrations(paths_), (std::vector<Registration>{folder, Bucket("fleet")}));
  struct stat st;
  ASSERT_EQ(::stat((folder_ / "repositories/fleet.json").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST_F(RegistryTest, ATakenNameIsRefused) {
  ASSERT_TRUE(AddRegistration(paths_, Bucket("fleet")));
  Registration other = Bucket("fleet");
  other.location = "s3://other";
  const Status again = AddRegistration(paths_, other);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kAlreadyExists);
  EXPECT_THAT(again.error().message, HasSubstr("s3://bucket/prefix"));
  EXPECT_EQ(FindRegistration(paths_, "fleet")->location, "s3://bucket/prefix");
}

TEST_F(RegistryTest, ARemovedNameIsGone) {
  ASSERT_TRUE(AddRegistration(paths_, Bucket("fleet")));
  ASSERT_TRUE(RemoveRegistration(paths_, "fleet"));
  EXPECT_EQ(RemoveRegistration(paths_, "fleet").error().code, Code::kNotFound);
  EXPECT_EQ(FindRegistration(paths_, "fleet").error().code, Code::kNotFound);
}

TEST_F(RegistryTest, AnUnknownNameIsReportedWithTheKnownOnes) {
  ASSERT_TRUE(AddRegistration(paths_, Bucket("fleet")));
  const auto missing = FindRegistration(paths_, "flet");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().hint, HasSubstr("fleet"));
}

TEST_F(RegistryTest, BadNamesAndValuesAreRefused) {
  for (const char* name : {"", "Fleet", "9", "../x", "a/b", "a b", "-a"}) {
    EXPECT_EQ(AddRegistration(paths_, Bucket(name)).error().code, Code::kInvalidArgument) << name;
    EXPECT_EQ(FindRegistration(paths_, name).error().code, Code::kInvalidArgument) << name;
  }
  const auto refuses = [&](auto change) {
    Registration r = Bucket("fleet");
    change(r);
    const Status added = AddRegistration(paths_, r);
    return !added && added.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refuses([](auto& r) { r.location = "bucket"; }));
  EXPECT_TRUE(refuses([](auto& r) { r.location = "/mnt/images"; })) << "has values for S3";
  EXPECT_TRUE(refuses([](auto& r) { r.endpoint = "s3.example"; }));
  EXPECT_TRUE(refuses([](auto& r) { r.addressing = "dns"; }));
  EXPECT_TRUE(refuses([](auto& r) { r.ca_file = "ca.pem"; }));
  EXPECT_TRUE(refuses([](auto& r) { r.region = "a\nb"; }));
  EXPECT_TRUE(refuses([](auto& r) { r.profile = std::string(5000, 'x'); }));
}

TEST_F(RegistryTest, ADamagedRecordIsReportedAndNotSkipped) {
  ASSERT_TRUE(AddRegistration(paths_, Bucket("fleet")));
  const std::string path = folder_ / "repositories/fleet.json";
  const std::string good = *ReadFile(path);
  for (std::string bad : {std::string("{"), std::string("[]"), std::string("{\"version\": 1}")}) {
    ASSERT_TRUE(ReplaceFile(path, bad));
    EXPECT_EQ(ListRegistrations(paths_).error().code, Code::kDataLoss) << bad;
  }
  ASSERT_TRUE(ReplaceFile(path, "{\"version\": \"1\"}"));
  EXPECT_EQ(ListRegistrations(paths_).error().code, Code::kUnimplemented);
  std::string later = good;
  later.replace(later.find("\"version\": 1"), 12, "\"version\": 2");
  ASSERT_TRUE(ReplaceFile(path, later));
  EXPECT_EQ(FindRegistration(paths_, "fleet").error().code, Code::kUnimplemented);
}

}  // namespace
}  // namespace stasis::repository
