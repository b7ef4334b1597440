#include "criu/restore_plugin.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include "base/thread.h"
#include "criu/plugin_protocol.h"
#include "ipc/socket.h"

namespace stasis::criu {
namespace {

// The plugin's side of the connection.
class Plugin {
 public:
  explicit Plugin(UniqueFd socket) : socket_(std::move(socket)) {}

  // Sends a request and returns the answer.
  stasis_criu_frame Ask(stasis_criu_kind kind, pid_t pid) const {
    stasis_criu_frame frame = {};
    frame.magic = STASIS_CRIU_MAGIC;
    frame.version = STASIS_CRIU_VERSION;
    frame.kind = static_cast<uint16_t>(kind);
    frame.pid = pid;
    EXPECT_EQ(::send(socket_.get(), &frame, sizeof frame, 0), ssize_t{sizeof frame});
    EXPECT_EQ(::recv(socket_.get(), &frame, sizeof frame, 0), ssize_t{sizeof frame});
    return frame;
  }
  void Close() { socket_.Reset(); }

 private:
  UniqueFd socket_;
};

class RestorePluginTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pair = ipc::MakeSocketPair();
    ASSERT_TRUE(pair);
    auto link = MakePluginLink(std::move(pair->ours), {::getpid()});
    ASSERT_TRUE(link) << link.error().ToString();
    restore_.emplace(std::move(*link));
    plugin_.emplace(std::move(pair->theirs));
  }
  // Serves one request, which the plugin sends in `ask`.
  Status Serve(const std::function<void()>& ask, const NotifyHandler& handler) {
    auto asking = Thread::Start(ask);
    EXPECT_TRUE(asking);
    EXPECT_TRUE(ipc::AwaitReadable(restore_->fd(), Deadline::In(std::chrono::seconds(10))));
    Status served = restore_->Serve(kPids, handler);
    asking->Join();
    return served;
  }

  // CRIU has other pids: those of this process and 1000 more.
  const RestorePlugin::Pids kPids{
      [](process::HostPid pid) -> Result<pid_t> { return pid.value + 1000; },
      [](pid_t pid) -> Result<process::HostPid> { return process::HostPid{pid - 1000}; }};
  std::optional<RestorePlugin> restore_;
  std::optional<Plugin> plugin_;
};

TEST_F(RestorePluginTest, ThreadsRunUntilTheHandlerReturns) {
  EXPECT_FALSE(restore_->is_loaded());
  auto none = [](Notification&) -> Status { return Fail(Code::kInternal, "not called"); };
  ASSERT_TRUE(Serve(
      [&] { EXPECT_EQ(plugin_->Ask(STASIS_CRIU_BEGIN_RESTORE, 0).kind, STASIS_CRIU_OK); }, none));
  EXPECT_TRUE(restore_->is_loaded());
  EXPECT_FALSE(restore_->has_stopped());

  bool handled = false;
  auto plugin = [&] {
    const auto threads = plugin_->Ask(STASIS_CRIU_RESUME, 1042);
    EXPECT_EQ(threads.kind, STASIS_CRIU_THREAD_IDS);
    int32_t ids[2] = {};
    EXPECT_EQ(threads.length, sizeof ids);
    std::memcpy(ids, threads.text, sizeof ids);
    EXPECT_EQ(ids[0], 1043);
    EXPECT_EQ(ids[1], 1050);
    EXPECT_EQ(plugin_->Ask(STASIS_CRIU_RUNNING, 1042).kind, STASIS_CRIU_OK);
    EXPECT_TRUE(handled);
  };
  ASSERT_TRUE(Serve(plugin, [&](Notification& notification) -> Status {
    EXPECT_EQ(notification.moment, Moment::kStopped);
    EXPECT_EQ(notification.pid.value, 42);
    STASIS_TRY(notification.let_run({43, 50}));
    handled = true;
    return {};
  }));
  EXPECT_TRUE(restore_->has_stopped());
}

TEST_F(RestorePluginTest, AnErrorOfTheHandlerIsSent) {
  auto plugin = [&] {
    const auto answer = plugin_->Ask(STASIS_CRIU_RESUME, 1042);
    EXPECT_EQ(answer.kind, STASIS_CRIU_REFUSED);
    EXPECT_NE(std::string(answer.text).find("damaged"), std::string::npos);
  };
  Status served =
      Serve(plugin, [](Notification&) -> Status { return Fail(Code::kDataLoss, "damaged"); });
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().code, Code::kDataLoss);
}

TEST_F(RestorePluginTest, OtherRequestsAreRefused) {
  auto plugin = [&] { EXPECT_EQ(plugin_->Ask(STASIS_CRIU_PAUSE, 1042).kind, STASIS_CRIU_REFUSED); };
  EXPECT_FALSE(Serve(plugin, [](Notification&) -> Status { return {}; }));
}

TEST_F(RestorePluginTest, AfterItsEndThereIsNothingToServe) {
  ASSERT_TRUE(Serve([&] { plugin_->Close(); }, [](Notification&) -> Status { return {}; }));
  EXPECT_EQ(restore_->fd(), -1);
}

}  // namespace
}  // namespace stasis::criu
