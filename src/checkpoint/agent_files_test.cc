#include "checkpoint/agent_files.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "base/hex.h"
#include "jobs/agent_library.h"
#include "store/image_testing.h"

namespace stasis::checkpoint {
namespace {

using store::testing::TempStore;
using ::testing::HasSubstr;

class AgentFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto own = jobs::OwnAgentLibrary();
    ASSERT_TRUE(own) << own.error().ToString();
    own_ = *own;
    place_ = store_ / ("data/agents/" + own_.build_id + "/libstasis-agent.so");
  }

  store::RequiredFile Required(const std::string& path, const std::string& build_id) {
    return {path, ReadFile(own_.path)->size(), BytesOfHex(build_id)};
  }
  // Writes an image of a program that needs `file`. Old images do not contain the library.
  std::unique_ptr<store::ImageReader> Image(const store::RequiredFile& file, bool with_library) {
    auto writer = store::testing::MustBegin(store_.path(), with_library ? "with" : "without");
    store::Manifest manifest = store::testing::FullManifest();
    manifest.required_files.push_back(file);
    if (with_library) {
      EXPECT_TRUE(StoreAgentLibraries(*writer, manifest));
    }
    EXPECT_TRUE(writer->Commit(manifest, {}));
    auto reader = store::ImageReader::Open(writer->path());
    EXPECT_TRUE(reader) << reader.error().ToString();
    return std::move(*reader);
  }

  TempStore store_;
  jobs::AgentLibrary own_;
  std::string place_;
};

TEST_F(AgentFilesTest, TheLibraryIsInTheImageAndIsPutBackFromIt) {
  ASSERT_TRUE(jobs::RestoreAgentLibrary(place_, own_.build_id, own_.path));
  auto file = Required(place_, own_.build_id);
  auto reader = Image(file, true);
  EXPECT_EQ(AgentOf(reader->manifest()), place_);
  EXPECT_EQ(*ReadFile(reader->path() + "/agent/" + own_.build_id + ".so"), *ReadFile(own_.path));
  ASSERT_TRUE(RemoveTree(store_ / "data"));
  EXPECT_TRUE(CanPutBack(*reader, file, AgentSource::kImageToo));
  auto back = PutBackAgentLibraries(*reader, AgentSource::kImageToo);
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(*ReadFile(place_), *ReadFile(own_.path));
}

TEST_F(AgentFilesTest, OursWillDoWhenTheImageHasNone) {
  auto file = Required(place_, own_.build_id);
  auto reader = Image(file, false);
  EXPECT_TRUE(CanPutBack(*reader, file, AgentSource::kImageToo));
  ASSERT_TRUE(PutBackAgentLibraries(*reader, AgentSource::kImageToo));
  EXPECT_EQ(*ReadFile(place_), *ReadFile(own_.path));
}

// A build id can be copied into any library.
TEST_F(AgentFilesTest, OursIsPutBackIfTheImageHasAnotherOfThatBuild) {
  auto file = Required(place_, own_.build_id);
  auto writer = store::testing::MustBegin(store_.path(), "forged");
  store::Manifest manifest = store::testing::FullManifest();
  manifest.required_files.push_back(file);
  {
    auto library = writer->AddFile("agent/" + own_.build_id + ".so");
    ASSERT_TRUE(library);
    ASSERT_TRUE(WriteAll(library->get(), *ReadFile(own_.path) + "and more"));
  }
  ASSERT_TRUE(writer->Commit(manifest, {}));
  auto reader = store::ImageReader::Open(writer->path());
  ASSERT_TRUE(reader) << reader.error().ToString();
  ASSERT_TRUE(PutBackAgentLibraries(**reader, AgentSource::kImageToo));
  EXPECT_EQ(*ReadFile(place_), *ReadFile(own_.path));
}

// Only the image has the library, which is from another installation.
TEST_F(AgentFilesTest, OneOfAnotherBuildIsPutBackFromTheImageThatWasOpened) {
  std::string content = *ReadFile(own_.path);
  const std::string id = BytesOfHex(own_.build_id), other(id.size(), '\xaa');
  const size_t at = content.find(id);
  ASSERT_NE(at, content.npos);
  content.replace(at, id.size(), other);
  const std::string place = store_ / ("data/agents/" + HexOfBytes(other) + "/libstasis-agent.so");
  auto writer = store::testing::MustBegin(store_.path(), "theirs");
  store::Manifest manifest = store::testing::FullManifest();
  manifest.required_files.push_back({place, content.size(), other});
  {
    auto library = writer->AddFile("agent/" + HexOfBytes(other) + ".so");
    ASSERT_TRUE(library);
    ASSERT_TRUE(WriteAll(library->get(), content));
  }
  ASSERT_TRUE(writer->Commit(manifest, {}));
  auto reader = store::ImageReader::Open(writer->path());
  ASSERT_TRUE(reader) << reader.error().ToString();
  ASSERT_EQ(::rename(writer->path().c_str(), (store_ / "elsewhere").c_str()), 0);
  const auto& file = manifest.required_files.back();
  EXPECT_FALSE(CanPutBack(**reader, file, AgentSource::kThisInstallation));
  ASSERT_TRUE(PutBackAgentLibraries(**reader, AgentSource::kThisInstallation));
  EXPECT_FALSE(PathExists(place));
  auto back = PutBackAgentLibraries(**reader, AgentSource::kImageToo);
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(*ReadFile(place), content);
}

TEST_F(AgentFilesTest, OnlyAnOwnOrTrustedImageSuppliesIt) {
  Paths paths;
  paths.data = store_ / "state";
  ASSERT_TRUE(MakeDirs(paths.data));
  auto source = [&](const std::optional<store::OriginKey>& key, bool trusted) {
    auto writer = store::testing::MustBegin(store_.path(), "image");
    store::Manifest manifest = store::testing::FullManifest();
    store::CommitOptions options;
    options.origin = key;
    EXPECT_TRUE(writer->Commit(manifest, options));
    auto reader = store::ImageReader::Open(writer->path());
    EXPECT_TRUE(reader) << reader.error().ToString();
    EXPECT_TRUE(RemoveTree(writer->path()));
    return AgentSourceFor(**reader, paths, trusted);
  };
  auto own = store::OriginKeyOf(paths);
  ASSERT_TRUE(own) << own.error().ToString();
  EXPECT_EQ(source(*own, false), AgentSource::kImageToo);
  EXPECT_EQ(source(std::nullopt, false), AgentSource::kThisInstallation);
  EXPECT_EQ(source(store::OriginKey(BlockSecret{}), false), AgentSource::kThisInstallation);
  EXPECT_EQ(source(std::nullopt, true), AgentSource::kImageToo);
}

TEST_F(AgentFilesTest, OneOfAnotherBuildIsNotReplacedByOurs) {
  std::string other(40, 'a');
  auto file = Required(store_ / ("agents/" + other + "/libstasis-agent.so"), other);
  auto reader = Image(file, false);
  EXPECT_FALSE(CanPutBack(*reader, file, AgentSource::kImageToo));
  EXPECT_THAT(PutBackHint(*reader, file), HasSubstr(other));
  ASSERT_TRUE(PutBackAgentLibraries(*reader, AgentSource::kImageToo));
  EXPECT_FALSE(PathExists(file.path));
}

TEST_F(AgentFilesTest, ElsewhereOnlyTheUserPutsItBack) {
  auto file = Required(store_ / "libstasis-agent.so", own_.build_id);
  auto reader = Image(file, false);
  EXPECT_FALSE(CanPutBack(*reader, file, AgentSource::kImageToo));
  EXPECT_THAT(PutBackHint(*reader, file), HasSubstr("cp " + own_.path + " " + file.path));
  ASSERT_TRUE(PutBackAgentLibraries(*reader, AgentSource::kImageToo));
  EXPECT_FALSE(PathExists(file.path));
  EXPECT_EQ(PutBackHint(*reader, {"/lib/libc.so.6", 1, "\x01"}), "");
}

}  // namespace
}  // namespace stasis::checkpoint
