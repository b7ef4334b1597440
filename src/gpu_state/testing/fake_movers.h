// Fake movers. A call of the mover of GPU A is "mover A Save" in the CallLog.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/mover_pool.h"
#include "gpu_state/testing/call_log.h"
#include "gpu_state/testing/program.h"

namespace stasis::fakes {

class FakeMover : public dataplane::MoverLink {
 public:
  FakeMover(CallLog& log, std::string name, bool hash_blocks = false)
      : log_(log), name_(std::move(name)), hash_blocks_(hash_blocks) {}

  // A load lasts while this returns true, and does not finish before.
  std::function<bool()> keeps_loading = [] { return false; };

  // Sets the free memory of the GPU.
  void SetRoom(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    room_bytes_ = bytes;
  }

  Result<dataplane::MoverInfo> Start(const Deadline&) override {
    return Do("Start", [this]() -> Result<dataplane::MoverInfo> {
      dataplane::MoverInfo info;
      info.ends_with_client = ends_with_client;
      return info;
    });
  }
  Status Stop() override {
    return Do("Stop", [this]() -> Status {
      Kill();
      return {};
    });
  }
  Status Attach(const dataplane::Arena& arena, const Deadline&) override {
    return Do("Attach", [&]() -> Status {
      std::lock_guard lock(mutex_);
      arena_ = Duplicate(arena.fd());
      return {};
    });
  }
  Status Detach(const Deadline&) override {
    return Do("Detach", [&]() -> Status {
      DetachArena();
      return {};
    });
  }
  Result<bool> Warm(uint64_t, const std::stop_token& stop, const Deadline&) override {
    return Do("Warm", [&]() -> Result<bool> {
      if (stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
      return registers;
    });
  }
  Result<dataplane::WireSpeed> Measure(uint64_t, const Deadline&) override {
    return Fail(Code::kUnimplemented, "fake");
  }
  Status PrepareHashes(const BlockSecret& secret, const Deadline&) override {
    if (!hash_blocks_) return Fail(Code::kUnimplemented, "this fake mover hashes no blocks");
    std::lock_guard lock(mutex_);
    key_.emplace(secret);
    return {};
  }
  Result<dataplane::HashingSpeed> MeasureHashing(uint64_t, const Deadline&) override {
    return Fail(Code::kUnimplemented, "fake");
  }
  Result<dataplane::CopyResult> Save(const std::vector<dataplane::Range>& ranges,
                                     std::span<const int> fds,
                                     const dataplane::CopyOptions& options,
                                     const Deadline&) override {
    return Do("Save", [&]() -> Result<dataplane::CopyResult> {
      std::lock_guard lock(mutex_);
      dataplane::CopyResult result;
      for (size_t i = 0; i < ranges.size(); ++i) {
        memory_.push_back(Duplicate(fds[i]));
        if (options.hashes) {
          // A piece is one block.
          result.hashes.push_back(HashOf(fds[i]));
          if (i < options.known.size() && result.hashes[i] == options.known[i]) continue;
        }
        STASIS_TRY(Copy(fds[i], 0, arena_.get(), ranges[i].arena_offset));
        result.copied_bytes += ranges[i].size_bytes;
      }
      return result;
    });
  }
  Status PrepareLoad(const std::vector<dataplane::Range>& ranges, uint64_t ballast_bytes,
                     const Deadline&) override {
    return Do("PrepareLoad", [&]() -> Status {
      std::lock_guard lock(mutex_);
      const uint64_t needed = ranges.size() * kPiece + ballast_bytes;
      if (needed > room_bytes_) return Fail(Code::kResourceExhausted, "the GPU is full");
      ranges_ = ranges;
      memory_.clear();
      for (size_t i = 0; i < ranges.size(); ++i) memory_.push_back(NewMemory(""));
      ballast_bytes_ = ballast_bytes;
      return {};
    });
  }
  Status FreeBallast(const Deadline&) override {
    return Do("FreeBallast", [&]() -> Status {
      std::lock_guard lock(mutex_);
      ballast_bytes_ = 0;
      return {};
    });
  }
  Result<dataplane::CopyResult> Load(const dataplane::CopyOptions& options,
                                     const Deadline&) override {
    return Do("Load", [&]() -> Result<dataplane::CopyResult> {
      const uint64_t all = RangeBytes();
      // Runs without the lock, because `filled` may call FreeBallast.
      while (keeps_loading()) STASIS_TRY(options.filled(0));
      for (uint64_t loaded = 0; loaded < all;) {
        STASIS_ASSIGN(loaded, options.filled ? options.filled(loaded) : Result<uint64_t>(all));
      }
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < ranges_.size(); ++i) {
        STASIS_TRY(Copy(arena_.get(), ranges_[i].arena_offset, memory_[i].get(), 0));
      }
      return dataplane::CopyResult{};
    });
  }
  Status AttachRing(uint64_t, uint64_t, const Deadline&) override {
    return Do("AttachRing", []() -> Status { return {}; });
  }
  // Requires ranges of kPiece bytes each, as Program has.
  Status LoadFrom(const dataplane::LoadSource& source, const GoOn& go_on,
                  const Deadline&) override {
    return Do("LoadFrom", [&]() -> Status {
      while (keeps_loading()) STASIS_TRY(go_on(0));
      std::string buffer(dataplane::LoadSource::kItemBytes, '\0');
      for (size_t item = 0; item < source.items(); ++item) {
        std::vector<dataplane::LoadPart> parts;
        STASIS_TRY(source.Read(item, buffer.data(), parts));
        STASIS_TRY(go_on(0));
        std::lock_guard lock(mutex_);
        for (const auto& part : parts) STASIS_TRY(Write(part, buffer));
      }
      return source.Check(Hashes());
    });
  }
  Result<std::vector<UniqueFd>> Export(const Deadline&) override {
    return Do("Export", [&]() -> Result<std::vector<UniqueFd>> {
      std::lock_guard lock(mutex_);
      std::vector<UniqueFd> fds;
      for (const auto& fd : memory_) fds.push_back(Duplicate(fd.get()));
      return fds;
    });
  }
  Status Release(const Deadline&) override {
    return Do("Release", [this]() -> Status {
      std::lock_guard lock(mutex_);
      Drop();
      return {};
    });
  }

  bool holds_memory() const {
    std::lock_guard lock(mutex_);
    return !memory_.empty() || ballast_bytes_ != 0;
  }
  // Closes the descriptor, which holds the arena's lock, so that another arena store can open it.
  void DetachArena() {
    std::lock_guard lock(mutex_);
    arena_.Reset();
  }
  void Kill() {
    std::lock_guard lock(mutex_);
    Drop();
    arena_.Reset();
  }

  bool ends_with_client = false;  // of MoverInfo
  bool registers = true;          // the result of Warm()

 private:
  template <class Work>
  auto Do(const std::string& what, const Work& work) -> decltype(work()) {
    auto result = log_.Run("mover " + name_, what, work);
    // A mover that does not answer is killed.
    if (!result && result.error().code == Code::kDeadlineExceeded) Kill();
    return result;
  }
  // Requires the mutex.
  Id128 HashOf(int fd) const {
    std::string bytes(kPiece, '\0');
    return ::pread(fd, bytes.data(), bytes.size(), 0) < 0 ? Id128{} : key_->Hash(bytes);
  }
  std::vector<Id128> Hashes() const {
    std::lock_guard lock(mutex_);
    std::vector<Id128> hashes;
    for (const auto& fd : memory_) hashes.push_back(HashOf(fd.get()));
    return hashes;
  }
  // Requires the mutex.
  Status Write(const dataplane::LoadPart& part, const std::string& buffer) const {
    const std::string zeros(part.bytes, '\0');
    const char* from = part.zero ? zeros.data() : buffer.data() + part.buffer_offset;
    const UniqueFd& memory = memory_.at(part.device_offset / kPiece);
    const auto at = static_cast<off_t>(part.device_offset % kPiece);
    if (::pwrite(memory.get(), from, part.bytes, at) == static_cast<ssize_t>(part.bytes)) return {};
    return FailErrno(errno, "write to fake memory");
  }
  // Requires the mutex.
  void Drop() {
    memory_.clear();
    ranges_.clear();
    ballast_bytes_ = 0;
  }
  uint64_t RangeBytes() const {
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& range : ranges_) bytes += range.size_bytes;
    return bytes;
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
  const bool hash_blocks_;
  mutable std::mutex mutex_;  // guards all below
  std::optional<BlockKey> key_;
  uint64_t room_bytes_ = 80ull << 30;
  uint64_t ballast_bytes_ = 0;
  UniqueFd arena_;
  std::vector<dataplane::Range> ranges_;
  std::vector<UniqueFd> memory_;
};

class FakeMovers final : public dataplane::MoverPool {
 public:
  explicit FakeMovers(CallLog& log) : log_(log) {}

  FakeMover& MoverOf(const device::GpuUuid& gpu) override {
    std::lock_guard lock(mutex_);
    auto& mover = movers_[gpu];
    if (!mover) mover = std::make_unique<FakeMover>(log_, gpu == GpuA() ? "A" : "B", hash_blocks);
    return *mover;
  }
  void StopMovers() override {
    std::lock_guard lock(mutex_);
    for (auto& [gpu, mover] : movers_) mover->Kill();
  }
  Result<int> StopIdleMovers(const Deadline&) override {
    return log_.Run("movers", "StopIdle", []() -> Result<int> { return 0; });
  }
  // Acts like a command that keeps no arena.
  bool keeps_arenas() const override { return false; }
  void KeepArena(dataplane::Arena) override {}
  std::optional<dataplane::Arena> TakeArena(const dataplane::ArenaKey&) override {
    return std::nullopt;
  }

  // At the end of a command all movers detach their arenas.
  void DetachArenas() {
    std::lock_guard lock(mutex_);
    for (auto& [gpu, mover] : movers_) mover->DetachArena();
  }

  bool hash_blocks = false;  // for new movers

  bool hold_memory() const {
    std::lock_guard lock(mutex_);
    for (const auto& [gpu, mover] : movers_) {
      if (mover->holds_memory()) return true;
    }
    return false;
  }

 private:
  CallLog& log_;
  mutable std::mutex mutex_;  // guards the members below; locked before a mover's mutex
  std::map<device::GpuUuid, std::unique_ptr<FakeMover>> movers_;
};

}  // namespace stasis::fakes
