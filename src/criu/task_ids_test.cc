#include "criu/task_ids.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/fd.h"
#include "base/file.h"
#include "criu/image_entries.h"
#include "criu/tty_info.pb.h"

namespace stasis::criu {
namespace {

std::string Entry(uint32_t pid, uint32_t pgid, uint32_t sid, std::vector<uint32_t> threads) {
  image::PstreeEntry entry;
  entry.set_pid(pid);
  entry.set_pgid(pgid);
  entry.set_sid(sid);
  for (uint32_t id : threads) entry.add_threads(id);
  return entry.SerializeAsString();
}

Result<std::set<pid_t>> Read(const std::string& bytes, bool shell_job) {
  UniqueFd file(::memfd_create("pstree", MFD_CLOEXEC));
  STASIS_TRY(WriteAll(file.get(), bytes));
  return ReadTaskIds(file.get(), bytes.size(), shell_job);
}

TEST(TaskIds, ThreadsGroupsAndSessionsAreIncluded) {
  const std::string bytes = MakeEntries(
      kPstreeImage, {Entry(10, 10, 10, {10, 11}), Entry(20, 12, 10, {20}), Entry(21, 0, 5, {21})});
  EXPECT_EQ(Read(bytes, false).value(), (std::set<pid_t>{5, 10, 11, 12, 20, 21}));
}

TEST(TaskIds, AProgramOfAShellGetsTheRestoringGroupAndSession) {
  const std::string bytes =
      MakeEntries(kPstreeImage, {Entry(10, 9, 8, {10, 11}), Entry(20, 9, 8, {20})});
  EXPECT_EQ(Read(bytes, true).value(), (std::set<pid_t>{10, 11, 20}));
}

TEST(TaskIds, AnotherFormatIsAnError) {
  EXPECT_FALSE(Read("not an image", false));
  EXPECT_FALSE(Read(MakeEntries(kPstreeImage, {"\xff\xff"}), false));
}

}  // namespace
}  // namespace stasis::criu
