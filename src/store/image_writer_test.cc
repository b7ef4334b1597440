#include "store/image_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::FullManifest;
using testing::MakeImage;
using testing::MustBegin;
using testing::Noise;
using testing::PretendCriuDump;
using testing::TempStore;
using testing::WriteFile;

std::vector<std::string> Names(const std::string& folder) { return *ListDir(folder); }

TEST(WriterTest, AnImageIsReadBackAsItWasWritten) {
  TempStore store;
  std::string path = MakeImage(store.path(), "a");
  EXPECT_EQ(Names(store.path()), std::vector<std::string>{"a"});

  auto reader = ImageReader::Open(path);
  ASSERT_TRUE(reader) << reader.error().ToString();
  const Manifest& m = (*reader)->manifest();
  EXPECT_FALSE(m.image_id.IsZero());
  EXPECT_GT(m.created_unix_ns, 0);
  ASSERT_EQ(m.files.size(), 4u);
  EXPECT_EQ(m.files[0].path, "cpu/empty.img");
  EXPECT_EQ(m.files[2].path, "cpu/pages-1.img");
  EXPECT_EQ(m.files[2].size_bytes, 300'000u);
  EXPECT_EQ(m.files[3].path, "log/criu-dump.log");

  auto report = (*reader)->Verify(VerifyLevel::kFull);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->ok()) << report->ToStatus(path).error().ToString();
  EXPECT_EQ(report->files, 4u);
  EXPECT_EQ(report->bytes, m.TotalBytes());
}

TEST(WriterTest, OnlyAnImageWithAnAgentHasTheFolderAndTheFeature) {
  TempStore store;
  std::string without = MakeImage(store.path(), "a");
  EXPECT_FALSE(PathExists(without + "/agent"));
  EXPECT_EQ((*ReadFile(without + "/manifest.pb"))[24], '\0');

  auto image = MustBegin(store.path(), "b");
  PretendCriuDump(*image);
  auto fd = image->AddFile("agent/00ff.so");
  ASSERT_TRUE(fd && WriteAll(fd->get(), "library"));
  Manifest manifest = FullManifest();
  ASSERT_TRUE(image->Commit(manifest, {}));
  EXPECT_EQ(manifest.files.back().path, "agent/00ff.so");
  EXPECT_EQ((*ReadFile(image->path() + "/manifest.pb"))[24], '\1');
  auto reader = ImageReader::Open(image->path());
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_TRUE((*reader)->Verify(VerifyLevel::kFull)->ok());
}

TEST(WriterTest, ATakenNameIsRefusedAtTheBeginningAndAtTheEnd) {
  TempStore store;
  auto late = MustBegin(store.path(), "a");
  MakeImage(store.path(), "a");
  auto again = ImageWriter::Begin(store.path(), "a");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kAlreadyExists);

  PretendCriuDump(*late);
  Manifest manifest = FullManifest();
  auto status = late->Commit(manifest, {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kAlreadyExists) << status.error().ToString();
  ASSERT_TRUE(late->Abort());
  EXPECT_EQ(Names(store.path()), std::vector<std::string>{"a"});
}

TEST(WriterTest, InvalidNamesAreRefused) {
  TempStore store;
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "a b", "-x", "a\n", "\xff"}) {
    auto writer = ImageWriter::Begin(store.path(), name);
    ASSERT_FALSE(writer) << name;
    EXPECT_EQ(writer.error().code, Code::kInvalidArgument);
  }
  EXPECT_FALSE(ImageWriter::Begin(store.path(), std::string(129, 'a')));
  EXPECT_TRUE(ImageWriter::Begin(store.path(), std::string(128, 'a')));
  EXPECT_TRUE(Names(store.path()).empty());
}

TEST(WriterTest, ALongLogKeepsItsEnd) {
  TempStore store;
  auto writer = MustBegin(store.path(), "a");
  std::string text = Noise(3 << 20);
  WriteFile(store / "long.log", text);
  ASSERT_TRUE(writer->AddLogFile("criu.log", store / "long.log"));
  ASSERT_TRUE(writer->AddLog("short.log", "short"));
  Manifest manifest = FullManifest();
  ASSERT_TRUE(writer->Commit(manifest, {}));
  auto log = ReadFile(writer->path() + "/log/criu.log");
  EXPECT_LE(log->size(), kMaxLogBytes);
  EXPECT_EQ(log->rfind("[stasis: the first ", 0), 0u);
  EXPECT_EQ(log->substr(log->size() - 1000), text.substr(text.size() - 1000));
  EXPECT_EQ(*ReadFile(writer->path() + "/log/short.log"), "short");
}

TEST(WriterTest, AddedFilesCannotLeaveTheImage) {
  TempStore store;
  auto writer = MustBegin(store.path(), "a");
  for (const char* path :
       {"x", "../x", "cpu/../x", "cpu/a/b", "/etc/x", "cpu/", "etc/x", "packs/.."}) {
    EXPECT_FALSE(writer->AddFile(path)) << path;
  }
  EXPECT_TRUE(writer->AddFile("packs/0.pack"));
}

// When any step fails, Commit returns the error, no image is visible, and Abort removes all files.
TEST(WriterTest, AFailureAtAnyStepLeavesNoImage) {
  for (std::string_view step : ImageWriter::CommitSteps()) {
    SCOPED_TRACE(step);
    TempStore store;
    auto writer = MustBegin(store.path(), "a");
    PretendCriuDump(*writer);
    CommitOptions options;
    options.before_step = [&](std::string_view name) -> Status {
      if (name == step) return FailErrno(ENOSPC, "made to fail");
      return {};
    };
    Manifest manifest = FullManifest();
    auto status = writer->Commit(manifest, options);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kResourceExhausted);
    EXPECT_NE(status.error().ToString().find(step), std::string::npos);
    EXPECT_NE(status.error().ToString().find("bytes are free"), std::string::npos);
    EXPECT_FALSE(status.error().hint.empty());
    EXPECT_FALSE(writer->committed());
    EXPECT_FALSE(PathExists(writer->path()));
    ASSERT_TRUE(writer->Abort());
    EXPECT_TRUE(Names(store.path()).empty());
  }
}

// Simulates a Commit that was abandoned, and whose rename the kernel or a file server completes
// later.
struct LateRename {
  explicit LateRename(const TempStore& store) : writer(MustBegin(store.path(), "a")) {
    PretendCriuDump(*writer);
    CommitOptions options;
    options.before_step = [](std::string_view step) -> Status {
      if (step == "publish") return Fail(Code::kDeadlineExceeded, "it hangs");
      return {};
    };
    Manifest manifest = FullManifest();
    EXPECT_FALSE(writer->Commit(manifest, options));
  }
  void Come() const { ::rename(writer->partial_path().c_str(), writer->path().c_str()); }
  std::unique_ptr<ImageWriter> writer;
};

constexpr std::string_view kAbortSteps[] = {"remove the manifest", "remove late files",
                                            "hide the folder", "remove the folder"};

TEST(WriterTest, ARenameThatComesDuringTheAbortPublishesNothing) {
  for (std::string_view step : kAbortSteps) {
    SCOPED_TRACE(step);
    TempStore store;
    LateRename late(store);
    bool came = false;
    RemovalOptions options;
    options.before_step = [&](std::string_view at) -> Status {
      if (at == step && !std::exchange(came, true)) late.Come();
      return {};
    };
    auto aborted = late.writer->Abort(options);
    ASSERT_TRUE(aborted) << aborted.error().ToString();
    EXPECT_TRUE(Names(store.path()).empty());
  }
}

TEST(WriterTest, ARenameThatComesAfterAnAbortThatHungPublishesNoImage) {
  for (std::string_view step : kAbortSteps) {
    if (step == kAbortSteps[0]) continue;  // nothing was done by then
    SCOPED_TRACE(step);
    TempStore store;
    LateRename late(store);
    RemovalOptions options;
    options.before_step = [&](std::string_view at) -> Status {
      if (at == step) return Fail(Code::kDeadlineExceeded, "it hangs");
      return {};
    };
    ASSERT_FALSE(late.writer->Abort(options));
    late.writer->Abandon();
    late.Come();
    EXPECT_FALSE(ImageReader::Open(store / "a"));
    EXPECT_FALSE(HasManifest(store / "a"));
  }
}

TEST(WriterTest, AnAbortReportsEachRemovedFile) {
  TempStore store;
  LateRename late(store);
  int files = 0;
  RemovalOptions options;
  options.removed = [&] { ++files; };
  ASSERT_TRUE(late.writer->Abort(options));
  EXPECT_GT(files, 3);
}

TEST(WriterTest, ACancelLeavesNoImage) {
  TempStore store;
  auto writer = MustBegin(store.path(), "a");
  PretendCriuDump(*writer);
  Manifest manifest = FullManifest();
  auto status = writer->Commit(manifest, {[](uint64_t, uint64_t) { return false; }, nullptr});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kCancelled);
  writer.reset();
  EXPECT_TRUE(Names(store.path()).empty());
}

// Writes an image to a small file system, in a child with its own mount namespace. Returns the step
// that the child reached, or a number from 100 on for an error of the test.
int OnSmallDisk(const std::string& mount_point, const std::string& options) {
  if (::unshare(CLONE_NEWNS) != 0) return 100;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 101;
  if (::mount("tmpfs", mount_point.c_str(), "tmpfs", 0, options.c_str()) != 0) return 102;
  auto named = [&](const Error& error) {
    return error.code == Code::kResourceExhausted && error.raw == ENOSPC && !error.hint.empty() &&
           error.ToString().find(mount_point) != std::string::npos;
  };
  int reached = 0;
  {
    auto writer = ImageWriter::Begin(mount_point, "a");
    if (!writer) {
      if (!named(writer.error())) return 110;
      return ListDir(mount_point)->empty() ? reached : 111;
    }
    reached = 1;
    auto log = (*writer)->AddLog("x.log", Noise(5000));
    if (!log) {
      if (!named(log.error())) return 112;
    } else {
      reached = 2;
      Manifest manifest = FullManifest();
      auto status = (*writer)->Commit(manifest, {});
      if (!status && !named(status.error())) return 113;
      if (status) reached = 3;
      if (PathExists((*writer)->path()) != status.has_value()) return 114;
    }
  }
  if (reached < 3 && !ListDir(mount_point)->empty()) return 115;
  return reached;
}

// Tries sizes from 1 on for the mount option `option`, so that the disk becomes full in Begin, in a
// log, in the commit, and finally not at all.
void FillAtEachWrite(const std::string& option, const std::string& unit,
                     const std::vector<bool>& expected) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount a small file system";
  std::vector<bool> seen(4);
  for (unsigned room = 2; room < 20; ++room) {
    TempStore store;
    pid_t child = ::fork();
    if (child == 0) {
      ::_exit(OnSmallDisk(store.path(), option + std::to_string(room) + unit));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) >= 100 && WEXITSTATUS(status) <= 102) {
      GTEST_SKIP() << "this container cannot mount a tmpfs (" << WEXITSTATUS(status) << ")";
    }
    ASSERT_LT(WEXITSTATUS(status), 4) << "with " << option << room << unit;
    seen[WEXITSTATUS(status)] = true;
  }
  EXPECT_EQ(seen, expected) << "not every place was reached";
}

TEST(WriterTest, WithoutInodesEachWriteIsAClearErrorAndLeavesNothing) {
  FillAtEachWrite("nr_inodes=", "", {true, true, true, true});
}

TEST(WriterTest, WithoutSpaceEachWriteIsAClearErrorAndLeavesNothing) {
  // Folders need no space on a tmpfs, so Begin never fails.
  FillAtEachWrite("size=", "k", {false, true, true, true});
}

}  // namespace
}  // namespace stasis::store
