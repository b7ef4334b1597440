// Faults that a mover does not survive, and input that it must reject.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <stop_token>

#include "base/file.h"
#include "base/thread.h"
#include "driver_agent.h"
#include "ipc/helper_process.h"
#include "ipc/socket.h"

namespace stasis::dataplane::testing {
namespace {

using MoverFaultTest = DataplaneTest;

// The driver calls of a save and of a load, in order. The mover is killed inside each of them.
constexpr const char* kSaveCalls[] = {
    "cuMemAddressReserve",  "cuMemImportFromShareableHandle", "cuMemMap",      "cuMemSetAccess",
    "cuMemHostRegister_v2", "cuMemcpyDtoHAsync_v2",           "cuEventRecord", "cuEventSynchronize",
    "cuStreamSynchronize",
};
constexpr const char* kLoadCalls[] = {
    "cuMemGetInfo_v2",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemHostRegister_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuEventSynchronize",
    "cuMemExportToShareableHandle",
};

class Killed : public DataplaneTest {
 protected:
  void SetUp() override {
    DataplaneTest::SetUp();
    if (!OnSoftgpu()) GTEST_SKIP() << "only softgpu dies on demand";
    agent_.emplace();
    agent_->Create({4 * kMib, 16 * kMib, 2 * kMib}, 20);
    ranges_ = agent_->ranges();
    fds_ = agent_->Export();
    agent_->Release();
    store_.emplace(OpenStore());
  }
  // A new mover repeats everything from the same descriptors.
  void SaveAfresh() {
    Mover mover(OptionsFor(0));
    auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
    ASSERT_DONE(arena);
    ASSERT_DONE(mover.Attach(*arena, Soon()));
    ASSERT_DONE(mover.Save(ranges_, Raw(fds_), {}, Soon()));
    ASSERT_DONE(store_->Complete(*arena));
    ASSERT_DONE(mover.Release(Soon()));
  }
  void LoadAfresh() {
    auto arena = store_->Find(KeyOf(0));
    ASSERT_DONE(arena);
    ASSERT_TRUE(arena->record().complete);
    Mover mover(OptionsFor(0));
    ASSERT_DONE(mover.Attach(*arena, Soon()));
    ASSERT_DONE(mover.PrepareLoad(arena->record().ranges, 0, Soon()));
    ASSERT_DONE(mover.Load({}, Soon()));
    auto fds = mover.Export(Soon());
    ASSERT_DONE(fds);
    ASSERT_DONE(mover.Release(Soon()));
    agent_->TakeBack(*fds);
    agent_->Verify();
    agent_->Release();
  }

  std::optional<DriverAgent> agent_;
  std::optional<ArenaStore> store_;
  std::vector<Range> ranges_;
  std::vector<UniqueFd> fds_;
};

TEST_F(Killed, AtEachCallOfASave) {
  for (const char* call : kSaveCalls) {
    SCOPED_TRACE(call);
    {
      Mover mover(OptionsFor(0));
      auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
      ASSERT_DONE(arena);
      ASSERT_DONE(mover.Start(Soon()));
      Fault(mover.pid(), std::string(call) + ":1=die");
      ASSERT_DONE(mover.Attach(*arena, Soon()));
      auto saved = mover.Save(ranges_, Raw(fds_), {}, Soon());
      EXPECT_REFUSED(Code::kUnavailable, saved);
      EXPECT_NE(saved.error().message.find("signal 9"), std::string::npos) << saved.error().message;
      EXPECT_EQ(mover.pid(), 0);
    }
    // The killed mover's leftovers are not mistaken for data.
    auto left = store_->Find(KeyOf(0));
    ASSERT_DONE(left);
    EXPECT_FALSE(left->record().complete);
    // Rolls back: the program imports its own descriptors.
    agent_->TakeBack(fds_);
    agent_->Verify();
    agent_->Release();
  }
  SaveAfresh();
  fds_.clear();
  LoadAfresh();
}

// A stop does not wait for the driver.
TEST_F(Killed, ByAStopDuringARegistration) {
  {
    Mover mover(OptionsFor(0));
    auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
    ASSERT_DONE(arena);
    ASSERT_DONE(mover.Attach(*arena, Soon()));
    Fault(mover.pid(), "cuMemHostRegister_v2:1=hang");
    std::stop_source stop;
    auto stopper = Thread::Start([&] { stop.request_stop(); });
    const auto warmed = mover.Warm(16 * kMib, stop.get_token(), Soon());
    EXPECT_REFUSED(Code::kCancelled, warmed);
    EXPECT_EQ(mover.pid(), 0);
  }
  SaveAfresh();
}

TEST_F(Killed, AtEachCallOfALoad) {
  SaveAfresh();
  fds_.clear();
  const uint64_t free = FreeGpuBytes(0);
  for (const char* call : kLoadCalls) {
    SCOPED_TRACE(call);
    auto load = [&]() -> Status {
      Mover mover(OptionsFor(0));
      auto arena = store_->Find(KeyOf(0));
      if (!arena) return Fail(std::move(arena.error()));
      STASIS_TRY(mover.Start(Soon()));
      Fault(mover.pid(), std::string(call) + ":1=die");
      STASIS_TRY(mover.Attach(*arena, Soon()));
      STASIS_TRY(mover.PrepareLoad(arena->record().ranges, 8 * kMib, Soon()));
      STASIS_TRY(mover.FreeBallast(Soon()));
      STASIS_TRY(mover.Load({}, Soon()));
      STASIS_TRY(mover.Export(Soon()));
      return {};
    };
    EXPECT_REFUSED(Code::kUnavailable, load());
    EXPECT_EQ(FreeGpuBytesSoon(0, free), free) << "its GPU memory goes with it";
    EXPECT_TRUE(store_->Find(KeyOf(0))->record().complete);
  }
  LoadAfresh();
}

TEST_F(Killed, ALoadThatRunsOutOfMemoryInTheMiddleTakesNothing) {
  SaveAfresh();
  fds_.clear();
  Mover mover(OptionsFor(0));
  auto arena = store_->Find(KeyOf(0));
  ASSERT_DONE(arena);
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  const uint64_t free = FreeGpuBytes(0);
  for (const char* rule :
       {"cuMemCreate:1=fail(2)", "cuMemCreate:3=fail(2)", "cuMemMap:2=fail(2)"}) {
    SCOPED_TRACE(rule);
    Fault(mover.pid(), rule);
    EXPECT_REFUSED(Code::kResourceExhausted,
                   mover.PrepareLoad(arena->record().ranges, 4 * kMib, Soon()));
    EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  }
  Fault(mover.pid(), "cuMemExportToShareableHandle:2=fail(2)");
  ASSERT_DONE(mover.PrepareLoad(arena->record().ranges, 0, Soon()));
  ASSERT_DONE(mover.Load({}, Soon()));
  EXPECT_REFUSED(Code::kResourceExhausted, mover.Export(Soon()));
  ASSERT_DONE(mover.Release(Soon()));
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  ASSERT_DONE(mover.Stop());
  { auto closed = std::move(*arena); }
  LoadAfresh();
}

// Uses one descriptor for all handles and one range for all copies, and fails before the copy,
// because test machines do not have 40 GiB.
TEST_F(Killed, TenThousandHandlesAreImportedAndReleased) {
  constexpr size_t kHandles = 10000;
  Mover mover(OptionsFor(0));
  auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
  ASSERT_DONE(arena);
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  const process::HostPid pid{mover.pid()};
  const size_t open_before = process::ReadOpenFiles(pid)->size();
  const std::vector<Range> many(kHandles, Range{0, 2 * kMib, 0, 2 * kMib});
  const std::vector<int> same(kHandles, fds_[2].get());
  Fault(pid.value, "cuMemSetAccess:1=fail(2)");
  EXPECT_REFUSED(Code::kResourceExhausted, mover.Save(many, same, {}, Soon()));
  EXPECT_EQ(mover.pid(), pid.value);
  EXPECT_EQ(process::ReadOpenFiles(pid)->size(), open_before);
  EXPECT_DONE(mover.Save(ranges_, Raw(fds_), {}, Soon()));
}

TEST_F(Killed, WhileItHoldsTheOnlyOtherReference) {
  Mover mover(OptionsFor(0));
  auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
  ASSERT_DONE(arena);
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  ASSERT_DONE(mover.Save(ranges_, Raw(fds_), {}, Soon()));
  ::kill(mover.pid(), SIGKILL);
  // A dead mover has released everything.
  (void)mover.Release(Soon());
  EXPECT_EQ(mover.pid(), 0);
  agent_->TakeBack(fds_);
  agent_->Verify();
}

TEST_F(Killed, AHungMoverIsKilledAtTheDeadline) {
  for (const char* call :
       {"cuMemImportFromShareableHandle", "cuMemcpyDtoHAsync_v2", "cuEventSynchronize"}) {
    SCOPED_TRACE(call);
    Mover mover(OptionsFor(0));
    auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
    ASSERT_DONE(arena);
    ASSERT_DONE(mover.Attach(*arena, Soon()));
    Fault(mover.pid(), std::string(call) + "=hang");
    auto saved = mover.Save(ranges_, Raw(fds_), {}, Deadline::In(std::chrono::milliseconds(1500)));
    EXPECT_REFUSED(Code::kDeadlineExceeded, saved);
    EXPECT_EQ(mover.pid(), 0) << "ended";
  }
  SaveAfresh();
}

TEST_F(Killed, ADriverErrorLeavesTheMoverUsable) {
  Mover mover(OptionsFor(0));
  auto arena = store_->Acquire(KeyOf(0), ::getuid(), ranges_);
  ASSERT_DONE(arena);
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  const pid_t first = mover.pid();
  Fault(first, "cuMemImportFromShareableHandle:2=fail(2)");
  EXPECT_REFUSED(Code::kResourceExhausted, mover.Save(ranges_, Raw(fds_), {}, Soon()));
  EXPECT_EQ(mover.pid(), first);
  // Memory registered ahead of a failed copy is still recorded as registered.
  Fault(first, "cuMemcpyDtoHAsync_v2:1=fail(2)");
  EXPECT_REFUSED(Code::kResourceExhausted, mover.Save(ranges_, Raw(fds_), {}, Soon()));
  EXPECT_EQ(mover.pid(), first);
  auto again = mover.Save(ranges_, Raw(fds_), {}, Soon());
  ASSERT_DONE(again);
  EXPECT_FALSE(again->staged);
  ASSERT_DONE(mover.Release(Soon()));
  // The mover exits after a sticky error; 700 is an illegal address.
  Fault(first, "cuMemcpyDtoHAsync_v2:1=fail(700)");
  EXPECT_REFUSED(Code::kInternal, mover.Save(ranges_, Raw(fds_), {}, Soon()));
  EXPECT_EQ(mover.pid(), 0);
  // No memory may be locked: slower, but correct.
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  EXPECT_NE(mover.pid(), first);
  Fault(mover.pid(), "cuMemHostRegister_v2:2=fail(304)");
  auto saved = mover.Save(ranges_, Raw(fds_), {}, Soon());
  ASSERT_DONE(saved);
  EXPECT_TRUE(saved->staged);
  ASSERT_DONE(store_->Complete(*arena));
  ASSERT_DONE(mover.Stop());
  { auto closed = std::move(*arena); }
  fds_.clear();
  LoadAfresh();
}

TEST_F(MoverFaultTest, DescriptorsAndSizesAreChecked) {
  ArenaStore store = OpenStore();
  DriverAgent agent;
  agent.Create({4 * kMib, 8 * kMib}, 21);
  const std::vector<Range> good = agent.ranges();
  auto fds = agent.Export();
  auto arena = store.Acquire(KeyOf(0), ::getuid(), good);
  ASSERT_DONE(arena);
  Mover mover(OptionsFor(0));
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  const pid_t pid = mover.pid();

  int pipe_fds[2], sockets[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  UniqueFd pipe_read(pipe_fds[0]), pipe_write(pipe_fds[1]), socket_a(sockets[0]),
      socket_b(sockets[1]);
  auto null = Open("/dev/null", O_RDWR);
  auto file = Open(disk_dir_ + "/file", O_RDWR | O_CREAT);
  auto folder = Open(disk_dir_, O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::ftruncate(file->get(), 4 * kMib), 0);
  for (int fd : {pipe_read.get(), pipe_write.get(), socket_a.get(), null->get(), file->get(),
                 folder->get(), arena->fd()}) {
    SCOPED_TRACE(*ReadLink("/proc/self/fd/" + std::to_string(fd)));
    EXPECT_REFUSED(Code::kInvalidArgument,
                   mover.Save(good, std::vector<int>{fds[0].get(), fd}, {}, Soon()));
  }
  // Announces a smaller and a larger allocation than the real one.
  for (uint64_t size : {2 * kMib, 6 * kMib, 3 * kMib, kMib / 2}) {
    SCOPED_TRACE(size);
    std::vector<Range> wrong = {{0, size}, {0, 4 * kMib}};
    ASSERT_DONE(LayOut(wrong));
    EXPECT_REFUSED(Code::kInvalidArgument, mover.Save(wrong, Raw(fds), {}, Soon()));
  }
  // Too much for the arena, fewer descriptors than sizes, sizes that overflow, and nothing.
  std::vector<Range> too_much = {{0, 4 * kMib}, {0, 8 * kMib}, {0, 8 * kMib}};
  ASSERT_DONE(LayOut(too_much));
  EXPECT_REFUSED(Code::kInvalidArgument,
                 mover.Save(too_much, std::vector<int>(3, fds[0].get()), {}, Soon()));
  EXPECT_REFUSED(Code::kInvalidArgument,
                 mover.Save(good, std::vector<int>{fds[0].get()}, {}, Soon()));
  EXPECT_REFUSED(Code::kInvalidArgument,
                 mover.Save({{0, ~0ull, 0, ~0ull}, {0, 2, 0, 2}}, Raw(fds), {}, Soon()));
  EXPECT_EQ(mover.pid(), pid) << "it lives on";

  if (Gpus().size() > 1) {
    DriverAgent other(1);
    other.Create({4 * kMib}, 22);
    auto foreign = other.Export();
    EXPECT_REFUSED(Code::kInvalidArgument,
                   mover.Save({{0, 4 * kMib, 0, 4 * kMib}}, Raw(foreign), {}, Soon()));
  }
  // After that, correct requests still work.
  agent.Release();
  ASSERT_DONE(mover.Save(good, Raw(fds), {}, Soon()));
  ASSERT_DONE(mover.Release(Soon()));
  agent.TakeBack(fds);
  agent.Verify();
}

TEST_F(MoverFaultTest, TheOrderOfRequestsIsEnforced) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  EXPECT_REFUSED(Code::kUnavailable, mover.Load({}, Soon()));
  ASSERT_DONE(mover.Start(Soon()));
  const std::vector<Range> ranges = {{0, 2 * kMib, 0, 2 * kMib}};
  EXPECT_REFUSED(Code::kFailedPrecondition, mover.PrepareLoad(ranges, 0, Soon()));
  auto arena = store.Acquire(KeyOf(0), ::getuid(), ranges);
  ASSERT_DONE(arena);
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  EXPECT_REFUSED(Code::kFailedPrecondition, mover.Load({}, Soon()));
  EXPECT_REFUSED(Code::kFailedPrecondition, mover.FreeBallast(Soon()));
  ASSERT_DONE(mover.PrepareLoad(ranges, 0, Soon()));
  EXPECT_REFUSED(Code::kFailedPrecondition, mover.Attach(*arena, Soon()));
  EXPECT_REFUSED(Code::kFailedPrecondition, mover.Measure(kMib, Soon()));
  ASSERT_DONE(mover.Release(Soon()));
  ASSERT_DONE(mover.Release(Soon()));
  ASSERT_DONE(mover.Attach(*arena, Soon()));
}

// The mover gives a wrong answer, or none.
TEST_F(MoverFaultTest, AnswersOfAMoverAreChecked) {
  struct Row {
    const char* script;
    Code code;
  };
  constexpr Row kRows[] = {
      {"exit 3", Code::kUnavailable},
      {"exec cat <&3 >&3", Code::kUnavailable},
      {"head -c 1 <&3 >/dev/null; printf x >&3; exec sleep 100", Code::kUnavailable},
      {"exec sleep 100", Code::kDeadlineExceeded},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.script);
    MoverOptions options = OptionsFor(0);
    options.program = disk_dir_ + "/mover";
    std::filesystem::remove(options.program);
    ASSERT_DONE(WriteFileDurably(options.program, std::string("#!/bin/sh\n") + row.script + "\n"));
    ASSERT_EQ(::chmod(options.program.c_str(), 0700), 0);
    Mover mover(options);
    EXPECT_REFUSED(row.code, mover.Start(Deadline::In(std::chrono::milliseconds(
                                 row.code == Code::kDeadlineExceeded ? 300 : 20000))));
    EXPECT_EQ(mover.pid(), 0) << "ended and reaped";
  }
}

TEST_F(MoverFaultTest, InvalidRequestsAreRejectedAndTheMoverContinues) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  UniqueFd ours(sockets[0]), theirs(sockets[1]);
  MoverOptions options = OptionsFor(0);
  SpawnOptions spawn;
  spawn.argv = {options.program, "--gpu", options.gpu.value};
  if (!options.library.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--library", options.library});
  }
  spawn.fds = {{ipc::kHelperSocketFd, theirs.get()}};
  auto process = Subprocess::Spawn(spawn);
  ASSERT_DONE(process);
  theirs.Reset();
  auto ask = [&](const void* data, size_t size, std::vector<int> fds = {}) {
    EXPECT_DONE(ipc::SendPacket(ours.get(), data, size, fds));
    wire::Reply reply;
    auto packet = ipc::ReceivePacket(ours.get(), &reply, sizeof reply);
    EXPECT_EQ(packet->size, sizeof reply);
    EXPECT_EQ(wire::WhyInvalid(reply, packet->size, packet->fds.size()), nullptr);
    return static_cast<Code>(reply.code);
  };
  wire::Request good;
  good.id = 1;
  std::vector<char> garbage(sizeof good + 100, 'x');
  for (size_t size : {size_t{1}, sizeof good - 1, sizeof good, sizeof good + 100}) {
    EXPECT_EQ(ask(garbage.data(), size), Code::kInvalidArgument) << size;
  }
  EXPECT_EQ(ask(&good, sizeof good, std::vector<int>(253, 0)), Code::kInvalidArgument);
  for (uint32_t op = 0; op <= static_cast<uint32_t>(wire::Op::kLast) + 1; ++op) {
    wire::Request odd = good;
    odd.op = static_cast<wire::Op>(op);
    odd.count = 5;
    odd.first = 1000000;
    if (odd.op == wire::Op::kHello || odd.op == wire::Op::kDetach || odd.op == wire::Op::kRelease ||
        odd.op == wire::Op::kEnd || odd.op == wire::Op::kPrepareHashes) {
      continue;  // these are valid at any time
    }
    EXPECT_NE(ask(&odd, sizeof odd), Code::kOk) << op;
    // Pass a directory in place of the arena and of handles.
    auto folder = Open(disk_dir_, O_RDONLY | O_DIRECTORY);
    EXPECT_NE(ask(&odd, sizeof odd, std::vector<int>(op == 2 ? 1 : 5, folder->get())), Code::kOk);
  }
  EXPECT_EQ(ask(&good, sizeof good), Code::kOk);
  ours.Reset();
  auto status = process->Wait(Soon());
  ASSERT_DONE(status);
  EXPECT_EQ(DescribeWaitStatus(*status), "exited with code 0") << "it ends with its socket";
}

TEST_F(MoverFaultTest, AMoverThatCannotStartReportsTheReason) {
  MoverOptions options = OptionsFor(0);
  options.gpu.value = "GPU-00000000-0000-0000-0000-000000000000";
  Mover unknown(options);
  EXPECT_REFUSED(Code::kNotFound, unknown.Start(Soon()));
  options.gpu.value = "nonsense";
  Mover nonsense(options);
  EXPECT_REFUSED(Code::kInvalidArgument, nonsense.Start(Soon()));
  options = OptionsFor(0);
  options.library = "/nowhere/libcuda.so.1";
  Mover driverless(options);
  EXPECT_REFUSED(Code::kUnimplemented, driverless.Start(Soon()));
  options.program = "/nowhere/stasis-mover";
  Mover missing(options);
  EXPECT_REFUSED(Code::kNotFound, missing.Start(Soon()));
}

}  // namespace
}  // namespace stasis::dataplane::testing
