// Jobs from before the database existed: tests/jobs/v1.
#include <gmock/gmock.h>

#include <filesystem>

#include "jobs/database.h"
#include "jobs/test_jobs.h"

namespace stasis::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TakeOverTest : public JobsTest {
 protected:
  TakeOverTest() {
    std::filesystem::copy(STASIS_TESTS_DIR "/jobs/v1", folder.path() + "/jobs",
                          std::filesystem::copy_options::recursive);
  }
  std::vector<std::string> InDatabase() {
    std::vector<std::string> ids;
    auto database = Database::Open(folder.path() + "/jobs");
    auto rows = database->List();
    for (const auto& row : *rows) ids.push_back(row.id);
    return ids;
  }
};

TEST_F(TakeOverTest, ListTakesAllThatCanBeReadAndNamesTheOther) {
  auto listed = store.List();
  ASSERT_TRUE(listed) << listed.error().ToString();
  ASSERT_EQ(listed->size(), 4u);
  EXPECT_EQ((*listed)[0].id, "damaged");
  ASSERT_FALSE((*listed)[0].job);
  EXPECT_EQ((*listed)[0].job.error().code, Code::kDataLoss);
  EXPECT_THAT((*listed)[0].job.error().ToString(), HasSubstr("read job damaged"));

  const Job& ended = *(*listed)[1].job;
  EXPECT_EQ(ended.state, State::kExited);
  EXPECT_EQ(ended.ending->code, 3);
  EXPECT_THAT(ended.argv, ElementsAre("/bin/sh", "-c", "echo said; exit 3"));
  EXPECT_EQ(ended.cwd, "/srv");
  EXPECT_EQ(ended.created_ms, 1795333736721);
  EXPECT_EQ(ended.uid, ::getuid());
  EXPECT_EQ((*listed)[2].job->state, State::kLost);

  const Job& saved = *(*listed)[3].job;
  EXPECT_EQ(saved.state, State::kDumped);
  EXPECT_EQ(saved.dumped_image, "/var/lib/stasis/images/second");
  auto checkpoints = store.Checkpoints("saved");
  ASSERT_TRUE(checkpoints);
  ASSERT_EQ(checkpoints->size(), 2u);
  EXPECT_EQ((*checkpoints)[0].name, "first");
  EXPECT_EQ((*checkpoints)[1].bytes, 129031u);
  EXPECT_EQ((*checkpoints)[1].written_bytes, std::nullopt);

  EXPECT_THAT(InDatabase(), ElementsAre("ended", "rebooted", "saved"));
  EXPECT_TRUE(store.Delete("damaged"));
  EXPECT_TRUE(store.Delete("ended"));
  EXPECT_EQ(store.List()->size(), 2u);
}

TEST_F(TakeOverTest, OneThatIsNamedIsTakenByItself) {
  EXPECT_EQ(Look("saved").checkpoints.size(), 2u);
  EXPECT_THAT(InDatabase(), ElementsAre("saved"));
  ASSERT_TRUE(store.AddCheckpoint("ended", {"/images/x", "x", 1, 2, 3}));
  EXPECT_EQ(Look("ended").checkpoints.size(), 1u);
  auto taken = store.Create({"rebooted", {"/bin/true"}, "/", "", ""});
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kAlreadyExists);
  EXPECT_EQ(store.Load("damaged").error().code, Code::kDataLoss);
  EXPECT_EQ(store.Load("nobody").error().code, Code::kNotFound);
}

TEST_F(TakeOverTest, SeveralAtTheSameTimeTakeEachJobOnce) {
  std::vector<pid_t> readers;
  for (int i = 0; i < 6; ++i) {
    pid_t pid = ::fork();
    if (pid == 0) {
      auto listed = store.List();
      ::_exit(listed && listed->size() == 4 ? 0 : 1);
    }
    readers.push_back(pid);
  }
  for (pid_t pid : readers) {
    int status = 1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(store.Checkpoints("saved")->size(), 2u);
}

TEST_F(TakeOverTest, ADatabaseThatWasTakenAwayIsMadeAnewOfTheFolders) {
  Run("mine", "exit 7");
  End("mine");
  ASSERT_TRUE(store.AddCheckpoint("saved", {"/images/third", "third", 1, 2, 3}));
  std::string database = folder.path() + "/jobs" + kDatabaseFile;
  ASSERT_EQ(::rename(database.c_str(), (folder.path() + "/away").c_str()), 0);
  Job mine = Look("mine");
  EXPECT_EQ(mine.state, State::kExited);
  EXPECT_EQ(mine.ending->code, 7);
  EXPECT_THAT(mine.argv, ElementsAre("/bin/sh", "-c", "exit 7"));
  EXPECT_EQ(Look("saved").checkpoints.size(), 2u);
  EXPECT_EQ(store.List()->size(), 5u);
}

TEST_F(TakeOverTest, ADeletedJobDoesNotComeBack) {
  ASSERT_TRUE(store.Delete("saved"));
  EXPECT_EQ(store.Load("saved").error().code, Code::kNotFound);
  EXPECT_EQ(store.List()->size(), 3u);
  EXPECT_THAT(InDatabase(), ElementsAre("ended", "rebooted"));
}

// The saved state counts if the shim's record is gone.
TEST_F(TakeOverTest, AnEndIsRememberedWithoutItsRecord) {
  EXPECT_EQ(Look("ended").state, State::kExited);
  EXPECT_EQ(Look("saved").state, State::kDumped);
  for (const char* id : {"ended", "saved"}) ASSERT_TRUE(RemoveTree(store.Folder(id)));
  EXPECT_EQ(Look("ended").state, State::kExited);
  EXPECT_EQ(Look("ended").ending->code, 3);
  EXPECT_EQ(Look("saved").state, State::kDumped);
  EXPECT_EQ(Look("saved").dumped_image, "/var/lib/stasis/images/second");
  EXPECT_TRUE(store.Delete("ended"));
  EXPECT_EQ(store.Load("ended").error().code, Code::kNotFound);
}

// A kill between the removal of the directory and of the row leaves a job that can be deleted
// again.
TEST_F(TakeOverTest, AJobWithoutItsFolderCanBeDeletedAndItsNameUsed) {
  Look("rebooted");
  ASSERT_EQ(
      ::rename(store.Folder("rebooted").c_str(), (folder.path() + "/jobs/.old-abcdef").c_str()), 0);
  EXPECT_EQ(Look("rebooted").state, State::kLost);
  EXPECT_FALSE(store.Create({"rebooted", {"/bin/true"}, "/", "", ""}));
  ASSERT_TRUE(store.Delete("rebooted"));
  EXPECT_TRUE(store.Create({"rebooted", {"/bin/true"}, "/", "", ""}));
  EXPECT_THAT(ListDir(folder.path() + "/jobs").value(),
              ::testing::Not(::testing::Contains(".old-abcdef")));
}

}  // namespace
}  // namespace stasis::jobs
