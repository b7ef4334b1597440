#include "store/store_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::FullManifest;
using testing::MakeImage;
using testing::MustBegin;
using testing::PretendCriuDump;
using testing::TempStore;
using testing::WriteFile;

std::vector<std::string> EntriesOf(const std::string& folder) { return *ListDir(folder); }

TEST(StoreFolderTest, AnImageIsFoundByNameAndByPath) {
  TempStore store;
  std::string path = MakeImage(store.path(), "a");
  std::vector<std::string> stores = {"/proc/no-such-folder", store.path()};
  EXPECT_EQ(*ResolveImage(stores, "a"), path);
  EXPECT_EQ(*ResolveImage({}, path), path);
  auto none = ResolveImage(stores, "b");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  EXPECT_NE(none.error().message.find(store.path()), std::string::npos);
  EXPECT_EQ(ResolveImage(stores, "./b").error().code, Code::kNotFound);
  EXPECT_FALSE(ResolveImage(stores, ".."));
  // A name never means a folder in the working directory.
  std::filesystem::path before = std::filesystem::current_path();
  TempStore other;
  MakeImage(other.path(), "c");
  std::filesystem::current_path(other.path());
  EXPECT_EQ(ResolveImage(stores, "c").error().code, Code::kNotFound);
  std::filesystem::current_path(before);
  EXPECT_FALSE(ResolveImage(stores, ""));
}

TEST(StoreFolderTest, OnlyImagesAreListed) {
  TempStore store;
  MakeImage(store.path(), "b");
  MakeImage(store.path(), "a");
  ASSERT_EQ(::mkdir((store / "folder").c_str(), 0700), 0);
  WriteFile(store / "file", "x");
  auto writer = MustBegin(store.path(), "c");
  EXPECT_EQ(*ListImages(store.path()), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(ListImages("/proc/no-such-folder")->empty());
}

TEST(StoreFolderTest, DeletingTakesAllOfAnImageAndOnlyAnImage) {
  TempStore store;
  std::string path = MakeImage(store.path(), "a");
  // A damaged image can be deleted too.
  WriteFile(path + "/manifest.pb", "");
  ASSERT_TRUE(DeleteImage(path + "/"));
  EXPECT_TRUE(ListDir(store.path())->empty());

  ASSERT_EQ(::mkdir((store / "folder").c_str(), 0700), 0);
  WriteFile(store / "folder/manifest.pb", "x");
  WriteFile(store / "folder/thesis.tex", "x");
  auto status = DeleteImage(store / "folder");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  EXPECT_NE(status.error().message.find("thesis.tex"), std::string::npos);
  EXPECT_TRUE(PathExists(store / "folder/thesis.tex"));

  EXPECT_EQ(DeleteImage(store / "nothing").error().code, Code::kNotFound);
  ASSERT_EQ(::symlink((store / "folder").c_str(), (store / "link").c_str()), 0);
  EXPECT_FALSE(DeleteImage(store / "link"));
}

TEST(StoreFolderTest, AnImageThatIsBeingReadIsNotDeleted) {
  TempStore store;
  std::string path = MakeImage(store.path(), "a");
  auto reader = ImageReader::Open(path);
  ASSERT_TRUE(reader);
  auto second = ImageReader::Open(path);
  EXPECT_TRUE(second) << "two may read";
  EXPECT_EQ(DeleteImage(path).error().code, Code::kAborted);
  reader->reset();
  second->reset();
  EXPECT_TRUE(DeleteImage(path));
}

TEST(StoreFolderTest, TheSweepRemovesOnlyHiddenFoldersOfStasis) {
  TempStore store;
  MakeImage(store.path(), "a");
  const char* ours[] = {".x.deleted-0123456789abcdef", ".x.partial-0123456789abcdef",
                        ".x.partial-0123456789abcdef.late"};
  const char* others[] = {".git", ".x.partial-0123", ".x.partial-0123456789abcdeX",
                          "x.partial-0123456789abcdef", ".partial-0123456789abcdef"};
  for (std::string name : ours) ASSERT_EQ(::mkdir((store / name).c_str(), 0700), 0);
  for (std::string name : others) ASSERT_EQ(::mkdir((store / name).c_str(), 0700), 0);
  WriteFile(store / ".f.partial-0123456789abcdef", "a file is not ours");
  WriteFile(store / (std::string(ours[0]) + "/manifest.pb"), "x");
  auto swept = SweepPartials(store.path());
  ASSERT_TRUE(swept);
  EXPECT_EQ(*swept, (std::vector<std::string>(std::begin(ours), std::end(ours))));
  EXPECT_EQ(ListDir(store.path())->size(), 7u);
  EXPECT_TRUE(SweepPartials("/proc/no-such-folder")->empty());
}

TEST(StoreFolderTest, TheSweepDeletesAllImagesOfAKilledMigrationButTheNewest) {
  TempStore store;
  const std::vector<std::string> others = {"job-moving-1-last", "job-moving-1-2x", "job-moving-1-",
                                           "job-moving-10", "other-1"};
  for (const std::string& name : others) MakeImage(store.path(), name);
  MakeImage(store.path(), "job-moving-1-1");
  MakeImage(store.path(), "job-moving-1-12");
  auto migration = MakeHidden(store.path(), "job-moving-1", kMoving);
  ASSERT_TRUE(migration);
  EXPECT_TRUE(SweepPartials(store.path())->empty()) << "it is in progress";
  EXPECT_EQ(ListImages(store.path())->size(), others.size() + 2);

  migration->fd.Reset();
  auto read = OpenFolder(store / "job-moving-1-12");
  ASSERT_TRUE(LockFolder(read->get(), LockKind::kShared, "the image"));
  EXPECT_TRUE(SweepPartials(store.path())->empty()) << "an image is being read";
  read->Reset();
  EXPECT_EQ(*SweepPartials(store.path()), std::vector<std::string>{migration->name});
  EXPECT_THAT(*ListImages(store.path()), ::testing::UnorderedElementsAreArray(others));

  // If there is no last image, the image of the newest round may be the only copy of the program.
  for (const char* name : {"job-moving-2-2", "job-moving-2-10"}) MakeImage(store.path(), name);
  MakeHidden(store.path(), "job-moving-2", kMoving)->fd.Reset();
  EXPECT_EQ(SweepPartials(store.path())->size(), 1u);
  EXPECT_FALSE(HasManifest(store / "job-moving-2-2"));
  EXPECT_TRUE(HasManifest(store / "job-moving-2-10"));
}

// CRIU writes stats-dump to its open folder after the notification in which the image is committed.
TEST(StoreFolderTest, FilesWrittenAfterTheCommitDoNotGetIntoTheImage) {
  TempStore store;
  auto writer = MustBegin(store.path(), "a");
  PretendCriuDump(*writer);
  Manifest manifest = FullManifest();
  ASSERT_TRUE(writer->Commit(manifest, {}));
  auto late = OpenAt(writer->cpu_dir_fd(), "stats-dump", O_WRONLY | O_CREAT);
  ASSERT_TRUE(late);

  auto report = (*ImageReader::Open(writer->path()))->Verify(VerifyLevel::kFull);
  EXPECT_TRUE(report->ok());
  EXPECT_EQ(EntriesOf(store.path()).size(), 2u);
  EXPECT_TRUE(SweepPartials(store.path())->empty()) << "still in use";
  ASSERT_TRUE(writer->AfterCommit());
  EXPECT_EQ(EntriesOf(store.path()), std::vector<std::string>{"a"});
}

// A dump deletes its image if the record of the job could not be updated.
TEST(StoreFolderTest, ACommittedImageMayBeDeletedWhileItsWriterLives) {
  TempStore store;
  auto writer = MustBegin(store / "new/folders", "a");
  PretendCriuDump(*writer);
  Manifest manifest = FullManifest();
  ASSERT_TRUE(writer->Commit(manifest, {}));
  auto deleted = DeleteImage(writer->path());
  EXPECT_TRUE(deleted) << deleted.error().ToString();
  EXPECT_TRUE(writer->AfterCommit());
  EXPECT_TRUE(EntriesOf(store / "new/folders").empty());
}

// Kills the process before each step of the commit in turn. The store then has either the complete
// image or, after a sweep, nothing.
TEST(StoreFolderTest, KilledAtAnyStepItIsWholeOrSweptAway) {
  bool published = false;
  for (std::string_view step : ImageWriter::CommitSteps()) {
    SCOPED_TRACE(step);
    TempStore store;
    pid_t child = ::fork();
    if (child == 0) {
      auto writer = MustBegin(store.path(), "a");
      PretendCriuDump(*writer);
      CommitOptions options;
      options.before_step = [&](std::string_view name) -> Status {
        if (name == step) ::kill(::getpid(), SIGKILL);
        return {};
      };
      Manifest manifest = FullManifest();
      (void)writer->Commit(manifest, options);
      ::_exit(1);
    }
    int wait_status = 0;
    ASSERT_EQ(::waitpid(child, &wait_status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(wait_status));

    EXPECT_EQ(ListImages(store.path())->size(), published ? 1u : 0u);
    auto swept = SweepPartials(store.path());
    ASSERT_TRUE(swept);
    EXPECT_FALSE(swept->empty());
    if (published) {
      auto reader = ImageReader::Open(store / "a");
      ASSERT_TRUE(reader) << reader.error().ToString();
      EXPECT_TRUE((*reader)->Verify(VerifyLevel::kFull)->ok());
      EXPECT_EQ(EntriesOf(store.path()), std::vector<std::string>{"a"});
    } else {
      EXPECT_TRUE(EntriesOf(store.path()).empty());
    }
    if (step == "publish") published = true;
  }
  EXPECT_TRUE(published);
}

TEST(StoreFolderTest, ALivePartialIsNotSwept) {
  TempStore store;
  auto writer = MustBegin(store.path(), "a");
  PretendCriuDump(*writer);
  EXPECT_TRUE(SweepPartials(store.path())->empty());
  Manifest manifest = FullManifest();
  EXPECT_TRUE(writer->Commit(manifest, {}));
}

TEST(StoreFolderTest, SpaceIsAskedForBeforehand) {
  EXPECT_TRUE(CheckSpace("/tmp", 1));
  auto status = CheckSpace("/tmp", 1ull << 60);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kResourceExhausted);
}

}  // namespace
}  // namespace stasis::store
