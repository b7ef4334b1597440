#include "containers/archive.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"

namespace stasis::containers {
namespace {

constexpr char kSpecification[] =
    R"({"mounts": [{"source": "proc", "destination": "/proc"},
                   {"source": "/data/agents/ab", "destination": "/usr/lib/agents/ab"},
                   {"destination": "/x"}, 7]})";

Deadline InTime() { return Deadline::In(std::chrono::seconds(20)); }

// A folder with an archive as podman and containerd's `content get` write it.
class ArchiveTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/archive-test-XXXXXX";
    folder_ = ::mkdtemp(folder);
    for (const char* made :
         {"/in/checkpoint/stasis/agent", "/in/stasis/agent", "/out/checkpoint"}) {
      ASSERT_TRUE(MakeDirs(folder_ + made));
    }
    ASSERT_TRUE(ReplaceFile(folder_ + "/in/spec.dump", kSpecification));
    for (const char* parent : {"/in/checkpoint/stasis", "/in/stasis"}) {
      ASSERT_TRUE(ReplaceFile(folder_ + parent + "/manifest.pb", "manifest"));
      ASSERT_TRUE(ReplaceFile(folder_ + parent + "/agent/ab.so", "library"));
      ASSERT_TRUE(ReplaceFile(folder_ + parent + "/other", "other"));
    }
    const std::string tar = "tar --force-local -cf a:1.tar -C in spec.dump checkpoint stasis";
    ASSERT_EQ(std::system(("cd " + folder_ + " && " + tar).c_str()), 0);
    podman_.reference.runtime = Runtime::kPodman;
    podman_.archive = folder_ + "/a:1.tar";
  }
  void TearDown() override { (void)RemoveTree(folder_); }

  std::string Extracted(const std::string& name) {
    return ReadFile(folder_ + "/out/checkpoint/stasis/" + name).value_or("");
  }

  std::string folder_;
  RestoreRequest podman_;
};

const std::vector<std::string> kFiles = {"manifest.pb", "reference.json", "agent/ab.so"};

TEST_F(ArchiveTest, APodmanArchiveIsReadInParts) {
  const auto runner = MakeCommandRunner();
  auto sources = MountSources(*runner, podman_, InTime());
  ASSERT_TRUE(sources) << sources.error().ToString();
  EXPECT_EQ(*sources, std::vector<std::string>{"/data/agents/ab"});
  ASSERT_TRUE(ExtractData(*runner, podman_, kFiles, folder_ + "/out", InTime()));
  EXPECT_EQ(Extracted("manifest.pb"), "manifest");
  EXPECT_EQ(Extracted("agent/ab.so"), "library");
  EXPECT_EQ(Extracted("other"), "");
  EXPECT_FALSE(PathExists(folder_ + "/out/checkpoint/stasis/reference.json"));
}

TEST_F(ArchiveTest, AFileThatIsNoArchiveIsAnError) {
  podman_.archive = folder_ + "/in/spec.dump";
  EXPECT_FALSE(MountSources(*MakeCommandRunner(), podman_, InTime()));
}

// A `ctr` that reads its content from files named by the digests.
TEST_F(ArchiveTest, AnImageOfContainerdIsReadInParts) {
  const std::string ctr = folder_ + "/bin/ctr";
  ASSERT_TRUE(MakeDirs(folder_ + "/bin"));
  ASSERT_TRUE(ReplaceFile(
      ctr,
      "#!/bin/sh\n[ \"$1 $2\" = '--namespace n' ] || exit 1\nshift 2\n"
      "case \"$1 $2 $3\" in\n'images ls name==saved') echo 'saved type sha256:index 1 KiB' ;;\n"
      "'content get sha256:index') cat " +
          folder_ +
          "/index ;;\n"
          "'content get sha256:config') cat " +
          folder_ +
          "/config ;;\n"
          "'content get sha256:criu') cat " +
          folder_ + "/a:1.tar ;;\n*) exit 1 ;;\nesac\n"));
  ASSERT_EQ(::chmod(ctr.c_str(), 0755), 0);
  ASSERT_TRUE(ReplaceFile(folder_ + "/index", R"({"manifests": [
      {"mediaType": "application/vnd.containerd.container.checkpoint.config.v1+proto",
       "digest": "sha256:config"},
      {"mediaType": "application/vnd.containerd.container.criu.checkpoint.criu.tar",
       "digest": "sha256:criu"}]})"));
  ASSERT_TRUE(ReplaceFile(folder_ + "/config", std::string("\x0a\x05types\x12") + kSpecification));
  const std::string before = ::getenv("PATH");
  ::setenv("PATH", (folder_ + "/bin:" + before).c_str(), 1);
  RestoreRequest request;
  request.reference = {Runtime::kContainerd, "saved", "n"};
  const auto runner = MakeCommandRunner();
  auto sources = MountSources(*runner, request, InTime());
  auto extracted = ExtractData(*runner, request, kFiles, folder_ + "/out", InTime());
  ::setenv("PATH", before.c_str(), 1);
  ASSERT_TRUE(sources) << sources.error().ToString();
  EXPECT_EQ(*sources, std::vector<std::string>{"/data/agents/ab"});
  ASSERT_TRUE(extracted) << extracted.error().ToString();
  EXPECT_EQ(Extracted("manifest.pb"), "manifest");
  EXPECT_EQ(Extracted("agent/ab.so"), "library");
}

TEST(MountSourcesInTest, DamagedSpecificationsAreRejected) {
  for (const char* text : {"", "}{", "{", "{]}", "x"}) {
    auto sources = MountSourcesIn(text);
    ASSERT_FALSE(sources) << text;
    EXPECT_EQ(sources.error().code, Code::kDataLoss);
  }
  EXPECT_TRUE(MountSourcesIn(R"({"mounts": 7})")->empty());
}

}  // namespace
}  // namespace stasis::containers
