#include "checkpoint/page_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "checkpoint/cpu_room.h"

namespace stasis::checkpoint {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string Bytes(size_t count, char first) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(first + i / 4096 % 97);
  return bytes;
}

// The test writes to the pipes as CRIU does.
class PageStreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);  // as in CRIU
    char path[] = "/tmp/page-streams-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    folder_ = path;
    fd_ = *Open(folder_, O_RDONLY | O_DIRECTORY);
  }
  void TearDown() override { (void)RemoveTree(folder_); }

  std::unique_ptr<PageStreams> Begin(uint64_t expected, uint64_t most, size_t files) {
    auto streams = PageStreams::Reserve(expected, most);
    EXPECT_TRUE(streams) << streams.error().ToString();
    EXPECT_TRUE((*streams)->Link(fd_.get(), files));
    for (const auto& [number, fd] : (*streams)->descriptors()) {
      criu_[number].Reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    EXPECT_TRUE((*streams)->Start());
    (*streams)->CloseOurEnds();
    return std::move(*streams);
  }
  // Opens the file as CRIU does; returns the pipe to which the link leads.
  int PipeOf(int file) {
    auto link = ReadLink(folder_ + "/pages-" + std::to_string(file) + ".img");
    EXPECT_TRUE(link);
    constexpr std::string_view kOwn = "/proc/self/fd/";
    EXPECT_TRUE(link->starts_with(kOwn)) << *link;
    return criu_.at(std::stoi(link->substr(kOwn.size()))).get();
  }

  std::string folder_;
  UniqueFd fd_;
  std::map<int, UniqueFd> criu_;
};

TEST_F(PageStreamsTest, AChildGetsAllBytesOfAllFiles) {
  auto streams = Begin(8 * kMiB, 64 * kMiB, 3);
  const std::string first = Bytes(9 * kMiB, 'a'), third = Bytes(size_t{3} * 4096, 'k');
  // More than what was touched, and far more than a pipe holds.
  ASSERT_TRUE(WriteAll(PipeOf(1), first));
  ASSERT_TRUE(WriteAll(PipeOf(3), third));
  ASSERT_TRUE(streams->Finish());
  EXPECT_EQ(streams->bytes(), first.size() + third.size());
  const auto files = streams->files();
  ASSERT_EQ(files.size(), 2u);
  const pid_t child = ::fork();
  if (child == 0) {
    auto content = streams->Content(files);
    const bool same = content && content->size() == 2 && (*content)[0].name == "pages-1.img" &&
                      (*content)[0].content == first && (*content)[1].name == "pages-3.img" &&
                      (*content)[1].content == third;
    streams->Free();
    ::_exit(same ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ((*streams->Content(files))[1].content, std::string(third.size(), '\0')) << "not freed";
  EXPECT_FALSE(streams->Content({{"pages-1.img", 64 * kMiB, 4096}}));
}

TEST_F(PageStreamsTest, LinksBecomeFilesThatCriuLeftEmpty) {
  auto streams = Begin(4096, kMiB, 4);
  ASSERT_TRUE(WriteAll(PipeOf(1), Bytes(4096, 'a')));
  ASSERT_TRUE(streams->Finish());
  // CRIU has opened three files of pages. It has written the fifth to the folder.
  for (const char* name : {"pagemap-7.img", "pagemap-8.img", "pagemap-shmem-1.img"}) {
    ASSERT_TRUE(ReplaceFile(folder_ + "/" + name, "x"));
  }
  ASSERT_TRUE(ReplaceFile(folder_ + "/pages-5.img", Bytes(4096, 'b')));
  ASSERT_TRUE(PageStreams::RemoveLinks(fd_.get(), streams->files()));
  const std::vector<std::string> wanted = {"pagemap-7.img", "pagemap-8.img", "pagemap-shmem-1.img",
                                           "pages-2.img",   "pages-3.img",   "pages-5.img"};
  auto names = *ListDir(folder_);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, wanted);
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/pages-5.img"), 4096u);
}

TEST_F(PageStreamsTest, CriuIsNotLeftWaitingIfTheMemoryIsTooSmall) {
  auto streams = Begin(kMiB, 2 * kMiB, 1);
  auto written = WriteAll(PipeOf(1), Bytes(8 * kMiB, 'a'));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().raw, EPIPE);
  EXPECT_EQ(streams->status().error().code, Code::kResourceExhausted);
  EXPECT_EQ(streams->Finish().error().code, Code::kResourceExhausted);
}

// CRIU puts a system call at the start of a mapping while it leaves a process.
TEST_F(PageStreamsTest, APageThatCriuUsesIsNotTaken) {
  auto streams = Begin(kMiB, 2 * kMiB, 1);
  std::string pages = Bytes(size_t{5} * 4096, 'a');
#if defined(__x86_64__)
  const std::string code = "\x0f\x05\xcc\xcc\xcc\xcc\xcc\xcc";
#else
  const std::string code("\x01\x00\x00\xd4\x00\x00\x20\xd4", 8);
#endif
  pages.replace(3 * 4096 + 8, 8, code);
  ASSERT_TRUE(WriteAll(PipeOf(1), pages));
  ASSERT_TRUE(streams->Finish()) << "only the start of a page counts";
  streams = Begin(kMiB, 2 * kMiB, 0);
  ASSERT_TRUE(RemoveTree(folder_ + "/pages-1.img"));
  streams = Begin(kMiB, 2 * kMiB, 1);
  pages.replace(size_t{3} * 4096, 8, code);
  ASSERT_TRUE(WriteAll(PipeOf(1), pages));
  EXPECT_EQ(streams->Finish().error().code, Code::kAborted);
}

TEST_F(PageStreamsTest, CriuIsNotLeftWaitingWhenTheOperationEnds) {
  {
    auto streams = Begin(0, 64 * kMiB, 1);
    ASSERT_TRUE(WriteAll(PipeOf(1), Bytes(kMiB, 'a')));
  }
  auto written = WriteAll(PipeOf(1), Bytes(kMiB, 'a'));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().raw, EPIPE);
}

TEST_F(PageStreamsTest, TooLittleMemoryLeavesTheFolderAlone) {
  const CpuRoomNeed need{10 * kMiB, 20 * kMiB};
  auto room = MakeCpuRoom(need, 5 * kMiB, 45 * kMiB - 1, fd_.get(), 2);
  EXPECT_EQ(room.streams, nullptr);
  EXPECT_NE(room.note.find("45 MiB of host memory must"), std::string::npos) << room.note;
  EXPECT_TRUE(ListDir(folder_)->empty());
  room = MakeCpuRoom(need, 5 * kMiB, 45 * kMiB, fd_.get(), 2);
  EXPECT_NE(room.streams, nullptr) << room.note;
  EXPECT_EQ(ListDir(folder_)->size(), 2u);
  // The second link cannot be made: the first one does not stay.
  ASSERT_TRUE(RemoveTree(folder_ + "/pages-1.img"));
  room = MakeCpuRoom(need, 0, 45 * kMiB, fd_.get(), 2);
  EXPECT_EQ(room.streams, nullptr);
  EXPECT_EQ(*ListDir(folder_), std::vector<std::string>{"pages-2.img"});
  // A store without symbolic links.
  room = MakeCpuRoom(need, 0, 45 * kMiB, Open("/proc/self", O_RDONLY | O_DIRECTORY)->get(), 2);
  EXPECT_EQ(room.streams, nullptr);
  EXPECT_FALSE(room.note.empty());
}

TEST_F(PageStreamsTest, TheNeedIsThatOfAllProcesses) {
  process::ProcessTree tree;
  tree.members.push_back(*process::ReadStat({::getpid()}));
  const CpuRoomNeed before = NeededCpuRoom(tree, 0);
  std::string memory = Bytes(32 * kMiB, 'a');
  const CpuRoomNeed after = NeededCpuRoom(tree, 100 * kMiB);
  EXPECT_GE(after.expected_bytes, before.expected_bytes + 130 * kMiB);
  EXPECT_GT(after.most_bytes, after.expected_bytes + after.expected_bytes / 8);
  EXPECT_EQ(memory.size(), 32 * kMiB);
  tree.members[0].id.pid.value = 1 << 30;  // a process that has ended
  EXPECT_EQ(NeededCpuRoom(tree, 0).expected_bytes, 0u);
}

}  // namespace
}  // namespace stasis::checkpoint
