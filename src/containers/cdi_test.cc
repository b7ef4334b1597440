#include "containers/cdi.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace stasis::containers {
namespace {

constexpr char kLibrary[] = "/var/lib/stasis/agents/0123abcd/libstasis-agent.so";

class CdiTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/cdi-XXXXXX";
    root_ = ::mkdtemp(folder);
    folder_ = root_ + "/cdi";
  }
  void TearDown() override { (void)RemoveTree(root_); }
  std::string Text() { return ReadFile(folder_ + "/stasis.json").value_or(""); }

  std::string root_, folder_;
};

TEST_F(CdiTest, TheSpecificationMountsTheFolderByBuildId) {
  auto document = nlohmann::json::parse(CdiSpecification(kLibrary));
  EXPECT_EQ(document["kind"], "stasis.dev/agent");
  const auto& device = document["devices"][0];
  EXPECT_EQ(device["name"], "on");
  const auto& edits = device["containerEdits"];
  EXPECT_EQ(edits["env"][0], "LD_PRELOAD=/usr/lib/stasis/agents/0123abcd/libstasis-agent.so");
  EXPECT_EQ(edits["mounts"][0]["hostPath"], "/var/lib/stasis/agents/0123abcd");
  EXPECT_EQ(edits["mounts"][0]["containerPath"], "/usr/lib/stasis/agents/0123abcd");
  EXPECT_EQ(edits["mounts"][0]["options"][0], "ro");
}

TEST_F(CdiTest, ItIsWrittenOnceAndReadable) {
  auto first = InstallCdi(folder_, kLibrary);
  ASSERT_TRUE(first) << first.error().ToString();
  EXPECT_TRUE(first->written);
  EXPECT_EQ(first->path, folder_ + "/stasis.json");
  struct stat st;
  ASSERT_EQ(::stat(first->path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0644u);
  EXPECT_EQ(Text(), CdiSpecification(kLibrary));
  EXPECT_FALSE(InstallCdi(folder_, kLibrary)->written);
  EXPECT_EQ(*LibraryOfCdi(folder_), kLibrary);
}

TEST_F(CdiTest, ANewBuildReplacesTheSpecificationOnly) {
  ASSERT_TRUE(InstallCdi(folder_, kLibrary));
  auto again = InstallCdi(folder_, "/var/lib/stasis/agents/9999ffff/libstasis-agent.so");
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->written);
  EXPECT_EQ(ListDir(folder_)->size(), 1u);
  EXPECT_EQ(*LibraryOfCdi(folder_), "/var/lib/stasis/agents/9999ffff/libstasis-agent.so");
}

TEST_F(CdiTest, AFileOfSomebodyElseIsNotOverwrittenNorRemoved) {
  ASSERT_TRUE(MakeDirs(folder_));
  const std::string theirs = R"({"kind": "vendor.com/gpu"})";
  ASSERT_TRUE(ReplaceFile(folder_ + "/stasis.json", theirs));
  auto refused = InstallCdi(folder_, kLibrary);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
  EXPECT_FALSE(*RemoveCdi(folder_));
  EXPECT_EQ(Text(), theirs);
}

TEST_F(CdiTest, ASecondDeclarationIsRefusedByName) {
  ASSERT_TRUE(MakeDirs(folder_));
  ASSERT_TRUE(ReplaceFile(folder_ + "/mine.yaml", "cdiVersion: 0.5.0\nkind: stasis.dev/agent\n"));
  ASSERT_TRUE(
      ReplaceFile(folder_ + "/nvidia.yaml", "kind: nvidia.com/gpu # not stasis.dev/agent\n"));
  auto refused = InstallCdi(folder_, kLibrary);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("mine.yaml"), std::string::npos);
  ASSERT_EQ(::unlink((folder_ + "/mine.yaml").c_str()), 0);
  EXPECT_TRUE(InstallCdi(folder_, kLibrary));
}

TEST_F(CdiTest, RemovingLeavesTheOthers) {
  ASSERT_TRUE(InstallCdi(folder_, kLibrary));
  ASSERT_TRUE(ReplaceFile(folder_ + "/nvidia.yaml", "kind: nvidia.com/gpu\n"));
  EXPECT_TRUE(*RemoveCdi(folder_));
  EXPECT_FALSE(*RemoveCdi(folder_));
  EXPECT_EQ(ListDir(folder_)->size(), 1u);
  EXPECT_EQ(*LibraryOfCdi(folder_), "");
}

}  // namespace
}  // namespace stasis::containers
