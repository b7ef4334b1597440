#include "slurm/node_tasks.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/file.h"
#include "ipc/socket.h"
#include "slurm/watch.h"

namespace stasis::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

NodeWait For(std::chrono::milliseconds time) { return {Deadline::In(time), -1, nullptr}; }
const NodeWait kLong = {{}, -1, nullptr};

class NodeTasksTest : public ::testing::Test {
 protected:
  NodeTasksTest() {
    // A socket's address is shorter than this path.
    meeting_.folder = base_ + "/" + std::string(200, 'x');
    EXPECT_TRUE(MakeDirs(meeting_.folder));
    meeting_.name = "slurm-7.0.n0";
    meeting_.restarts = 2;
    meeting_.count = 3;
  }
  ~NodeTasksTest() override { std::filesystem::remove_all(base_); }

  auto Join(const std::string& task, int local, const NodeWait& wait) {
    const UniqueFd watch = std::move(*Watch(meeting_.folder, IN_MOVED_TO));
    return NodeMember::Join(meeting_, task, local, watch, wait);
  }
  // Starts a launcher that joins.
  std::thread Joining(int local, std::optional<NodeMember>* member, std::string task = "") {
    if (task.empty()) task = "slurm-7.0." + std::to_string(local);
    return std::thread([=, this] {
      auto joined = Join(task, local, For(std::chrono::seconds(20)));
      if (joined) *member = std::move(*joined);
    });
  }
  // Returns the leader and both members.
  std::optional<NodeLeader> All() {
    std::thread first = Joining(1, &first_), second = Joining(2, &second_);
    auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
    EXPECT_TRUE(leader);
    const Status gathered = leader->Gather(kLong);
    EXPECT_TRUE(gathered) << gathered.error().ToString();
    first.join();
    second.join();
    return std::move(*leader);
  }
  static NodeMember::News NewsOf(NodeMember& member) {
    EXPECT_TRUE(ipc::AwaitReadable(member.fd(), Deadline::In(std::chrono::seconds(20))));
    return member.Read();
  }

  const std::string base_ = ::testing::TempDir() + "node_tasks_test" + std::to_string(::getpid());
  NodeMeeting meeting_;
  std::optional<NodeMember> first_, second_;
};

TEST_F(NodeTasksTest, MembersWaitForTheLeaderAndTalkToIt) {
  auto leader = All();
  EXPECT_THAT(leader->tasks(), ElementsAre("slurm-7.0.0", "slurm-7.0.1", "slurm-7.0.2"));
  EXPECT_FALSE(PathExists(meeting_.folder + "/slurm-7.0.n0.socket"));
  EXPECT_FALSE(first_->Read().begun);
  leader->SendBegun();
  EXPECT_TRUE(NewsOf(*first_).begun);
  second_->SendSignal(SIGUSR1);
  second_->SendSignal(0);  // is no signal
  EXPECT_THAT(leader->Read(), ElementsAre(TaskSignal{2, SIGUSR1}));
  leader->SendEnd(1, 75);
  EXPECT_EQ(NewsOf(*first_).end_code, 75);
}

TEST_F(NodeTasksTest, EndsAreReportedOnce) {
  auto leader = All();
  first_.reset();
  EXPECT_THAT(leader->Read(), ElementsAre(TaskSignal{1, 0}));
  EXPECT_THAT(leader->Read(), IsEmpty());
  leader->SendEnd(1, 0);
  leader->SendEnd(2, 3);
  leader.reset();
  const NodeMember::News news = NewsOf(*second_);
  EXPECT_EQ(news.end_code, 3);
  EXPECT_TRUE(NewsOf(*second_).leader_ended);
}

TEST_F(NodeTasksTest, AStaleSocketIsReplaced) {
  {
    UniqueFd folder = std::move(*Open(meeting_.folder, O_PATH | O_DIRECTORY));
    const sockaddr_un address = *ipc::AddressIn(folder.get(), meeting_.name + ".socket");
    const UniqueFd stale(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    ASSERT_EQ(::bind(stale.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ASSERT_TRUE(PathExists(meeting_.folder + "/slurm-7.0.n0.socket"));
  EXPECT_EQ(All()->tasks().size(), 3u);
}

TEST_F(NodeTasksTest, MissingTasksAreNamed) {
  meeting_.count = 4;
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  std::thread second = Joining(2, &second_);
  second.join();
  const Status gathered = leader->Gather(For(std::chrono::milliseconds(300)));
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().code, Code::kDeadlineExceeded);
  EXPECT_THAT(gathered.error().message, HasSubstr("SLURM_LOCALID 1, 3"));
}

TEST_F(NodeTasksTest, AMissingLeaderIsNamed) {
  auto joined = Join("slurm-7.0.1", 1, For(std::chrono::milliseconds(10)));
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, Code::kDeadlineExceeded);
  EXPECT_THAT(joined.error().message, HasSubstr("SLURM_LOCALID 0"));
}

TEST_F(NodeTasksTest, AWaitCanBeStopped) {
  const UniqueFd event(::eventfd(1, EFD_CLOEXEC));
  const NodeWait wait{{}, event.get(), [] { return true; }};
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  EXPECT_EQ(leader->Gather(wait).error().code, Code::kCancelled);
  meeting_.name = "slurm-7.0.n1";
  EXPECT_EQ(Join("slurm-7.0.1", 1, wait).error().code, Code::kCancelled);
}

// A launcher may have been stopped for longer than the others waited.
TEST_F(NodeTasksTest, WhoIsThereAtTheDeadlineIsNotMissing) {
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  Joining(1, &first_).join();
  Joining(2, &second_).join();
  const Status gathered = leader->Gather(For(std::chrono::milliseconds(0)));
  EXPECT_TRUE(gathered) << gathered.error().ToString();
}

TEST_F(NodeTasksTest, ManyMembersMayComeAtOnce) {
  meeting_.count = 101;
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  std::vector<std::optional<NodeMember>> members(101);
  for (int local = 1; local <= 100; ++local) Joining(local, &members[local]).join();
  const Status gathered = leader->Gather(For(std::chrono::seconds(20)));
  EXPECT_TRUE(gathered) << gathered.error().ToString();
  EXPECT_EQ(leader->tasks()[100], "slurm-7.0.100");
}

TEST_F(NodeTasksTest, ALeaderThatAcceptsNobodyIsNotAwaitedForEver) {
  UniqueFd folder = std::move(*Open(meeting_.folder, O_PATH | O_DIRECTORY));
  const sockaddr_un address = *ipc::AddressIn(folder.get(), meeting_.name + ".socket");
  const UniqueFd full(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::bind(full.get(), at, sizeof address), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  const UniqueFd first(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
  ASSERT_EQ(::connect(first.get(), at, sizeof address), 0);
  auto joined = Join("slurm-7.0.1", 1, For(std::chrono::milliseconds(300)));
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, Code::kDeadlineExceeded);
}

TEST_F(NodeTasksTest, AnEndReachesMembersThatWereNotGathered) {
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  Joining(1, &first_).join();
  leader->SendEndToUnknown(75);
  leader->SendEndToUnknown(3);
  EXPECT_EQ(NewsOf(*first_).end_code, 75);
}

TEST_F(NodeTasksTest, WrongLaunchersAreToldWhy) {
  meeting_.count = 2;
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  auto expect_rejected = [&](int local, const std::string& task, const std::string& reason) {
    Joining(local, &first_, task).join();
    EXPECT_FALSE(leader->Gather(For(std::chrono::milliseconds(50)))) << local << " " << task;
    EXPECT_THAT(NewsOf(*first_).rejected, HasSubstr(reason));
  };
  expect_rejected(0, "slurm-7.0.0", "no task");
  expect_rejected(2, "slurm-7.0.2", "no task");
  expect_rejected(1, "slurm-7/../x", "no task");
  expect_rejected(1, "other", "no task");
  meeting_.restarts = 1;
  expect_rejected(1, "slurm-7.0.1", "another start");
  meeting_.restarts = 2;
  Joining(1, &first_).join();
  EXPECT_TRUE(leader->Gather(kLong));
}

TEST_F(NodeTasksTest, ASecondLauncherOfATaskIsRejected) {
  auto leader = NodeLeader::Listen(meeting_, "slurm-7.0.0");
  ASSERT_TRUE(leader);
  Joining(1, &first_).join();
  Joining(1, &second_).join();
  EXPECT_FALSE(leader->Gather(For(std::chrono::milliseconds(50))));
  EXPECT_THAT(NewsOf(*second_).rejected, HasSubstr("already"));
  EXPECT_EQ(first_->Read().rejected, "");
}

}  // namespace
}  // namespace stasis::slurm
