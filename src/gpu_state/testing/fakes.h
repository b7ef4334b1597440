// Fake implementations of the interfaces in Services, for a Program. They keep the state that the
// real ones would change, record their calls, and fail where CallLog says.
//
//   "device Lock 1"       a driver call on process 1
//   "agent 1 Close"       a call of process 1's agent
//   "mover A Save"        a call of the mover of GPU A
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/mover_pool.h"
#include "gpu_state/testing/call_log.h"
#include "gpu_state/testing/program.h"

namespace stasis::fakes {

class FakeDevice final : public device::DeviceControl {
 public:
  FakeDevice(Program& program, CallLog& log) : program_(program), log_(log) {}

  device::DriverInfo driver{.kind = "fake", .version = "1", .can_checkpoint = true};
  std::vector<device::Gpu> gpus = {{GpuA(), 0, "model", 80ull << 30, 80ull << 30},
                                   {GpuB(), 1, "model", 80ull << 30, 80ull << 30}};
  std::vector<device::DeviceFileHolder> other_holders;

  Result<device::DriverInfo> Driver() override { return driver; }
  Result<std::vector<device::Gpu>> Gpus() override { return gpus; }
  Result<device::ProcessState> State(process::HostPid pid) override {
    std::lock_guard lock(program_.mutex);
    Process* process = program_.Find(pid);
    if (process == nullptr || !process->uses_gpu) return device::ProcessState::kNone;
    if (!process::IsAlive(process->id)) {
      return Fail(Code::kNotFound, Domain::kProcess, 0, "no such process");
    }
    return process->state;
  }
  Result<std::vector<device::DeviceProcess>> FindProcesses(
      const process::ProcessTree& tree) override {
    std::lock_guard lock(program_.mutex);
    std::vector<device::DeviceProcess> found;
    for (const auto& stat : tree.members) {
      Process* process = program_.Find(stat.id.pid);
      if (process == nullptr || !process->uses_gpu || !process::IsAlive(process->id)) continue;
      const bool away = process->state == device::ProcessState::kCheckpointed;
      found.push_back({process->id, process->state,
                       away ? std::vector<device::GpuUuid>() : process->gpus,
                       away ? 0 : process->device_bytes});
    }
    return found;
  }
  Result<std::vector<device::DeviceFileHolder>> FindOtherHolders(
      const process::ProcessTree&) override {
    return other_holders;
  }
  Result<pid_t> RestoreThread(process::HostPid pid) override { return pid.value; }

  using S = device::ProcessState;
  Status Lock(process::HostPid pid, const Deadline&) override {
    return Step("Lock", pid, S::kRunning, S::kLocked);
  }
  Status Checkpoint(process::HostPid pid, const Deadline&) override {
    return Step("Checkpoint", pid, S::kLocked, S::kCheckpointed);
  }
  Status Restore(process::HostPid pid, const device::GpuMap& map, const Deadline&) override {
    last_map = map;
    return Step("Restore", pid, S::kCheckpointed, S::kLocked);
  }
  Status Unlock(process::HostPid pid, const Deadline&) override {
    return Step("Unlock", pid, S::kLocked, S::kRunning);
  }
  Result<std::vector<std::string>> DeviceFilesHeld(process::HostPid pid) override {
    std::lock_guard lock(program_.mutex);
    Process* process = program_.Find(pid);
    return process == nullptr ? std::vector<std::string>() : process->files_held;
  }

  device::GpuMap last_map;

 private:
  Status Step(const std::string& what, process::HostPid pid, S from, S to) {
    Process* process = nullptr;
    {
      std::lock_guard lock(program_.mutex);
      process = program_.Find(pid);
    }
    if (process == nullptr) return Fail(Code::kNotFound, "no such process");
    return log_.Run("device", what + " " + std::to_string(process->number), [&]() -> Status {
      std::lock_guard lock(program_.mutex);
      if (!process::IsAlive(process->id)) return Fail(Code::kNotFound, "no such process");
      if (process->state != from) return Fail(Code::kFailedPrecondition, "wrong state");
      process->state = to;
      return {};
    });
  }

  Program& program_;
  CallLog& log_;
};

inline wire::Uuid WireUuid(const device::GpuUuid& gpu) {
  wire::Uuid uuid{};
  (void)device::GpuUuidBytes(gpu, uuid.bytes);
  return uuid;
}
// The name that the agent of a process uses among IPC peers.
inline wire::Uuid IpcName(int number) {
  wire::Uuid uuid{};
  uuid.bytes[0] = static_cast<uint8_t>(number);
  return uuid;
}

class FakeAgentLink final : public wire::AgentLink {
 public:
  FakeAgentLink(Program& program, CallLog& log, Process& process)
      : program_(program), log_(log), process_(process), agent_(*process.agent) {
    Refresh();
  }
  // As when the connection of a real client ends.
  ~FakeAgentLink() override {
    std::lock_guard lock(program_.mutex);
    agent_.connected = false;
    if (agent_.state == wire::State::kReleased && !agent_.held.empty()) {
      agent_.memory = std::move(agent_.held);
      agent_.held.clear();
      agent_.state = wire::State::kMapped;
    }
    if (agent_.state != wire::State::kReleased) {
      agent_.state = wire::State::kOpen;
      agent_.joined = true;
    }
  }

  const wire::HelloReply& hello() const override { return hello_; }
  Result<wire::HelloReply> Status(std::chrono::milliseconds) override {
    return Do("Status", [&]() -> Result<wire::HelloReply> { return hello_; });
  }
  stasis::Status Close(std::chrono::milliseconds, Floor floor) override {
    return Do(floor == Floor::kKeep ? "Close keeping limits" : "Close",
              [&] { return Move(wire::State::kOpen, wire::State::kClosed); });
  }
  Result<bool> CloseInSteps(std::chrono::milliseconds, Floor) override {
    return Do("CloseInSteps", [&] { return Quiesce(); });
  }
  Result<bool> Rest(uint32_t calls, std::chrono::milliseconds) override {
    return Do("Rest " + std::to_string(calls), [&] {
      if (calls > 0 && agent_.state == wire::State::kClosed) agent_.busy_rounds = 0;
      return Quiesce();
    });
  }
  bool goes_in_steps() const override { return agent_.steps; }
  const std::string& not_yet() const override { return not_yet_; }
  Result<wire::Export> ExportAll(std::chrono::milliseconds) override {
    return Do("ExportAll", [&]() -> Result<wire::Export> {
      if (agent_.state != wire::State::kClosed)
        return Fail(Code::kFailedPrecondition, "not closed");
      wire::Export data;
      data.ranges = List();
      for (const auto& fd : agent_.memory) data.fds.push_back(Duplicate(fd.get()));
      return data;
    });
  }
  Result<std::vector<wire::Range>> Describe(std::chrono::milliseconds) override {
    return Do("Describe", [&]() -> Result<std::vector<wire::Range>> { return List(); });
  }
  stasis::Status Release(Hold, std::chrono::milliseconds) override {
    return Do("Release", [&]() -> stasis::Status {
      STASIS_TRY(Move(wire::State::kClosed, wire::State::kReleased));
      agent_.held = std::move(agent_.memory);
      agent_.memory.clear();
      agent_.joined = agent_.ipc_ranges == 0;
      return {};
    });
  }
  stasis::Status Commit(std::chrono::milliseconds) override {
    return Do("Commit", [&]() -> stasis::Status {
      agent_.held.clear();
      return {};
    });
  }
  stasis::Status Own(std::chrono::milliseconds) override {
    return Do("Own", [&]() -> stasis::Status {
      agent_.imported = false;
      return {};
    });
  }
  stasis::Status Map(const std::vector<wire::Range>& ranges, const std::vector<int>& fds,
                     std::chrono::milliseconds) override {
    return Do("Map", [&]() -> stasis::Status {
      if (ranges.size() != agent_.content.size() || fds.size() != ranges.size()) {
        return Fail(Code::kInternal, "not the exported list");
      }
      STASIS_TRY(Move(wire::State::kReleased, wire::State::kMapped));
      // Without the agent's own descriptors it is an import.
      agent_.imported = agent_.held.empty();
      agent_.held.clear();
      agent_.memory.clear();
      for (int fd : fds) agent_.memory.push_back(Duplicate(fd));
      return {};
    });
  }
  stasis::Status Rejoin(std::chrono::milliseconds) override {
    return Do("Rejoin", [&]() -> stasis::Status {
      agent_.joined = true;
      return {};
    });
  }
  stasis::Status Open(std::chrono::milliseconds) override {
    return Do("Open", [&]() -> stasis::Status {
      if (agent_.state == wire::State::kReleased)
        return Fail(Code::kFailedPrecondition, "released");
      agent_.state = wire::State::kOpen;
      return {};
    });
  }

 private:
  template <class Work>
  auto Do(const std::string& what, const Work& work) -> decltype(work()) {
    return log_.Run("agent " + std::to_string(process_.number), what, [&]() -> decltype(work()) {
      std::lock_guard lock(program_.mutex);
      if (!process::IsAlive(process_.id)) {
        return Fail(Code::kUnavailable, "the agent ended the connection");
      }
      auto result = work();
      Refresh();
      return result;
    });
  }
  stasis::Status Move(wire::State from, wire::State to) {
    if (agent_.state != from) return Fail(Code::kFailedPrecondition, "wrong state");
    agent_.state = to;
    return {};
  }
  Result<bool> Quiesce() {
    if (agent_.busy_rounds > 0) {
      --agent_.busy_rounds;
      agent_.state = wire::State::kShut;
      not_yet_ = "the program's work on the GPU did not end";
      return false;
    }
    agent_.state = wire::State::kClosed;
    return true;
  }
  std::vector<wire::Range> List() const {
    std::vector<wire::Range> list;
    for (size_t i = 0; i < agent_.content.size(); ++i) {
      wire::Range range{};
      range.address = (i + 1) << 32;
      range.size_bytes = kPiece;
      range.device = WireUuid(agent_.gpus[i]);
      range.used_bytes = kPiece;
      list.push_back(range);
    }
    return list;
  }
  void Refresh() {
    hello_ = wire::HelloReply{};
    hello_.state = agent_.state;
    hello_.range_count = static_cast<uint32_t>(agent_.content.size());
    hello_.range_bytes = agent_.content.size() * kPiece;
    hello_.blockers = agent_.blockers;
    std::strncpy(hello_.blocker_text, agent_.blocker_text.c_str(), sizeof hello_.blocker_text - 1);
    if (agent_.imported) {
      hello_.imported_ranges = hello_.range_count;
      hello_.imported_bytes = hello_.range_bytes;
    }
    hello_.driver.plain_bytes = agent_.driver_bytes;
    hello_.driver.managed_bytes = agent_.managed_bytes;
    hello_.ipc_name = IpcName(process_.number);
    hello_.ipc_ranges = agent_.ipc_ranges;
    hello_.ipc_peer_count = static_cast<uint32_t>(agent_.peers.size());
    for (size_t i = 0; i < agent_.peers.size(); ++i) hello_.ipc_peers[i] = agent_.peers[i];
    for (size_t i = 0; i < agent_.gpus.size(); ++i) {
      const wire::Uuid gpu = WireUuid(agent_.gpus[i]);
      uint32_t at = 0;
      while (at < hello_.device_count &&
             std::memcmp(&hello_.devices[at].uuid, &gpu, sizeof gpu) != 0) {
        ++at;
      }
      if (at == hello_.device_count) hello_.devices[hello_.device_count++].uuid = gpu;
      hello_.devices[at].ranges++;
      hello_.devices[at].range_bytes += kPiece;
    }
  }

  Program& program_;
  CallLog& log_;
  Process& process_;
  Agent& agent_;
  wire::HelloReply hello_{};
  std::string not_yet_;
};

class FakeAgents final : public wire::Agents {
 public:
  FakeAgents(Program& program, CallLog& log) : program_(program), log_(log) {}

  Result<std::unique_ptr<wire::AgentLink>> Connect(process::HostPid pid,
                                                   std::chrono::milliseconds) override {
    Process* process = nullptr;
    {
      std::lock_guard lock(program_.mutex);
      process = program_.Find(pid);
    }
    if (process == nullptr || !process->agent || !process::IsAlive(process->id)) {
      return Fail(Code::kNotFound, "no agent");
    }
    return log_.Run("agent " + std::to_string(process->number), "Connect",
                    [&]() -> Result<std::unique_ptr<wire::AgentLink>> {
                      std::lock_guard lock(program_.mutex);
                      if (process->agent->connected) {
                        return Fail(Code::kAborted, "the agent has a client");
                      }
                      process->agent->connected = true;
                      return std::make_unique<FakeAgentLink>(program_, log_, *process);
                    });
  }
  Result<wire::AgentHeader> ReadHeader(process::HostPid pid) override {
    std::lock_guard lock(program_.mutex);
    Process* process = program_.Find(pid);
    if (process == nullptr || !process->agent || !process::IsAlive(process->id)) {
      return Fail(Code::kNotFound, "no agent");
    }
    const Agent& agent = *process->agent;
    wire::AgentHeader header{};
    header.memory = wire::kMemoryTold | wire::kStepsTold;
    if (agent.state == wire::State::kReleased) header.memory |= wire::kMemoryAway;
    if (agent.imported) header.memory |= wire::kMemoryImported;
    if (agent.ipc_ranges > 0 || !agent.peers.empty()) header.memory |= wire::kMemoryShared;
    return header;
  }

 private:
  Program& program_;
  CallLog& log_;
};

class FakeMover final : public dataplane::MoverLink {
 public:
  FakeMover(CallLog& log, std::string name) : log_(log), name_(std::move(name)) {}

  uint64_t room_bytes = 80ull << 30;  // on the GPU
  uint64_t ballast = 0;

  Result<dataplane::MoverInfo> Start(const Deadline&) override {
    return Do("Start", []() -> Result<dataplane::MoverInfo> { return dataplane::MoverInfo{}; });
  }
  Status Stop() override {
    return Do("Stop", [this] { return Drop(); });
  }
  Status Attach(const dataplane::Arena& arena, const Deadline&) override {
    return Do("Attach", [&]() -> Status {
      arena_ = Duplicate(arena.fd());
      return {};
    });
  }
  Status Detach(const Deadline&) override {
    return Do("Detach", [&]() -> Status {
      arena_.Reset();
      return {};
    });
  }
  Status Warm(uint64_t, const Deadline&) override { return {}; }
  Result<dataplane::WireSpeed> Measure(uint64_t, const Deadline&) override {
    return Fail(Code::kUnimplemented, "fake");
  }
  Status PrepareNames(const image::BlockSecret&, const Deadline&) override {
    return Fail(Code::kUnimplemented, "a fake mover names no blocks");
  }
  Result<dataplane::NamingSpeed> MeasureNaming(uint64_t, const Deadline&) override {
    return Fail(Code::kUnimplemented, "fake");
  }
  Result<dataplane::CopyResult> Save(const std::vector<dataplane::Range>& ranges,
                                     std::span<const int> fds, const dataplane::CopyOptions&,
                                     const Deadline&) override {
    return Do("Save", [&]() -> Result<dataplane::CopyResult> {
      dataplane::CopyResult result;
      for (size_t i = 0; i < ranges.size(); ++i) {
        STASIS_TRY(Copy(fds[i], 0, arena_.get(), ranges[i].arena_offset));
        result.copied_bytes += ranges[i].size_bytes;
        memory_.push_back(Duplicate(fds[i]));
      }
      return result;
    });
  }
  Status PrepareLoad(const std::vector<dataplane::Range>& ranges, uint64_t ballast_bytes,
                     const Deadline&) override {
    return Do("PrepareLoad", [&]() -> Status {
      const uint64_t needed = ranges.size() * kPiece + ballast_bytes;
      if (needed > room_bytes) return Fail(Code::kResourceExhausted, "the GPU is full");
      ranges_ = ranges;
      memory_.clear();
      for (size_t i = 0; i < ranges.size(); ++i) memory_.push_back(NewMemory(""));
      ballast = ballast_bytes;
      return {};
    });
  }
  Status FreeBallast(const Deadline&) override {
    return Do("FreeBallast", [&]() -> Status {
      ballast = 0;
      return {};
    });
  }
  Result<dataplane::CopyResult> Load(const dataplane::CopyOptions& options,
                                     const Deadline&) override {
    return Do("Load", [&]() -> Result<dataplane::CopyResult> {
      uint64_t all = 0;
      for (const auto& range : ranges_) all += range.size_bytes;
      for (uint64_t loaded = 0; loaded < all;) {
        STASIS_ASSIGN(loaded, options.filled ? options.filled(loaded) : Result<uint64_t>(all));
      }
      for (size_t i = 0; i < ranges_.size(); ++i) {
        STASIS_TRY(Copy(arena_.get(), ranges_[i].arena_offset, memory_[i].get(), 0));
      }
      return dataplane::CopyResult{};
    });
  }
  Result<std::vector<UniqueFd>> Export(const Deadline&) override {
    return Do("Export", [&]() -> Result<std::vector<UniqueFd>> {
      std::vector<UniqueFd> fds;
      for (const auto& fd : memory_) fds.push_back(Duplicate(fd.get()));
      return fds;
    });
  }
  Status Release(const Deadline&) override {
    return Do("Release", [this] { return Drop(); });
  }

  bool holds_memory() const { return !memory_.empty() || ballast != 0; }
  void DetachArena() { arena_.Reset(); }
  void Kill() {
    (void)Drop();
    DetachArena();
  }

 private:
  template <class Work>
  auto Do(const std::string& what, const Work& work) -> decltype(work()) {
    auto result = log_.Run("mover " + name_, what, work);
    // A mover that does not answer is killed.
    if (!result && result.error().code == Code::kDeadlineExceeded) Kill();
    return result;
  }
  Status Drop() {
    memory_.clear();
    ranges_.clear();
    ballast = 0;
    return {};
  }
  static Status Copy(int from, uint64_t from_offset, int to, uint64_t to_offset) {
    std::string bytes(4096, '\0');
    if (::pread(from, bytes.data(), bytes.size(), static_cast<off_t>(from_offset)) < 0 ||
        ::pwrite(to, bytes.data(), bytes.size(), static_cast<off_t>(to_offset)) < 0) {
      return FailErrno(errno, "copy");
    }
    return {};
  }

  CallLog& log_;
  const std::string name_;
  UniqueFd arena_;
  std::vector<dataplane::Range> ranges_;
  std::vector<UniqueFd> memory_;
};

class FakeMovers final : public dataplane::MoverPool {
 public:
  explicit FakeMovers(CallLog& log) : log_(log) {}

  bool keep_arenas = false;
  int idle = 0;  // movers that StopIdleMovers can stop

  FakeMover& MoverOf(const device::GpuUuid& gpu) override {
    std::lock_guard lock(mutex_);
    auto& mover = movers_[gpu];
    if (!mover) mover = std::make_unique<FakeMover>(log_, gpu == GpuA() ? "A" : "B");
    return *mover;
  }
  void StopMovers() override {
    std::lock_guard lock(mutex_);
    for (auto& [gpu, mover] : movers_) mover->Kill();
  }
  Result<int> StopIdleMovers(const Deadline&) override {
    return log_.Run("movers", "StopIdle", [&]() -> Result<int> { return std::exchange(idle, 0); });
  }
  bool keeps_arenas() const override { return keep_arenas; }
  void KeepArena(dataplane::Arena arena) override {
    std::lock_guard lock(mutex_);
    dataplane::ArenaKey key = arena.key();
    arenas_.insert_or_assign(std::move(key), std::move(arena));
  }
  std::optional<dataplane::Arena> TakeArena(const dataplane::ArenaKey& key) override {
    std::lock_guard lock(mutex_);
    auto found = arenas_.find(key);
    if (found == arenas_.end()) return std::nullopt;
    std::optional<dataplane::Arena> arena(std::move(found->second));
    arenas_.erase(found);
    return arena;
  }

  // As at the end of a command, whose movers detach their arenas.
  void DetachArenas() {
    std::lock_guard lock(mutex_);
    for (auto& [gpu, mover] : movers_) mover->DetachArena();
  }

  bool hold_memory() {
    std::lock_guard lock(mutex_);
    for (const auto& [gpu, mover] : movers_) {
      if (mover->holds_memory()) return true;
    }
    return false;
  }

 private:
  CallLog& log_;
  std::mutex mutex_;
  std::map<device::GpuUuid, std::unique_ptr<FakeMover>> movers_;
  std::map<dataplane::ArenaKey, dataplane::Arena> arenas_;
};

}  // namespace stasis::fakes
