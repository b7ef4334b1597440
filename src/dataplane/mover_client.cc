#include "dataplane/mover_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "dataplane/packet.h"
#include "dataplane/resident_mover.h"

namespace stasis::dataplane {
namespace {

using wire::Op;
using wire::Reply;
using wire::Request;

// A mover without work ends by itself; the kernel takes down what the driver has open.
constexpr std::chrono::milliseconds kIdleEnd{3000};
// For what must not be skipped although the deadline has passed: to let go of memory.
constexpr std::chrono::milliseconds kReleaseLimit{10000};

// A file in memory with these in it.
template <class T>
Result<UniqueFd> MemoryFile(const char* name, const std::vector<T>& values) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) return FailErrno(errno, "make a file in memory");
  STASIS_TRY(WriteAll(file.get(),
                      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
  return file;
}

Request Make(Op op) {
  Request request;
  request.op = op;
  return request;
}

}  // namespace

Mover::Mover(MoverOptions options) : options_(std::move(options)) {}

Mover::~Mover() { (void)Stop(); }

void Mover::Forget() {
  child_.reset();
  pidfd_.Reset();
  pid_ = 0;
  resident_ = false;
}

bool Mover::WaitEnd(const Deadline& deadline, std::string* how) {
  if (child_) {
    auto status = child_->Wait(deadline);
    if (!status) return false;
    if (how != nullptr) *how = DescribeWaitStatus(*status);
  } else {
    pollfd p{pidfd_.get(), POLLIN, 0};
    if (TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout())) <= 0) return false;
    if (how != nullptr) *how = "has ended";
  }
  Forget();
  return true;
}

Status Mover::Stop() {
  if (!running()) return {};
  if (resident_) return Farewell();
  socket_.Reset();
  const pid_t id = pid();
  if (WaitEnd(Deadline::In(kIdleEnd))) return {};
  End();
  const bool hangs = running();
  Forget();
  if (!hangs) return {};
  return Fail(Code::kInternal, fmt::format("the mover (process {}) hangs in the kernel", id));
}

// What it holds of ours it has let go when it answers: whoever comes next finds no lock of ours.
Status Mover::Farewell() {
  auto ended = Call(Make(Op::kEnd), {}, Deadline::In(kReleaseLimit));
  socket_.Reset();
  if (!ended) {
    // At work, or worse: it must not go on with what is ours.
    End();
    return {};
  }
  Forget();
  return {};
}

std::string Mover::End() {
  socket_.Reset();
  if (!running()) return "had ended";
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  std::string how;
  const pid_t id = pid();
  if (!WaitEnd(Deadline::In(options_.settle_timeout), &how)) {
    return fmt::format("(process {}) hangs in the kernel", id);
  }
  return how;
}

Status Mover::Connect(const Deadline& deadline) {
  // One that hangs in the kernel still holds GPU memory: nobody starts another beside it.
  if (running() && !WaitEnd(Deadline::In(std::chrono::milliseconds(0)))) {
    return Fail(Code::kUnavailable,
                fmt::format("the last mover (process {}) still hangs in the kernel", pid()));
  }
  if (!options_.resident_dir.empty() && options_.idle_timeout.count() > 0) {
    STASIS_ASSIGN(const bool found, ConnectToResident(deadline));
    if (found) return {};
  }
  return Spawn({}, -1);
}

Result<bool> Mover::ConnectToResident(const Deadline& deadline) {
  auto path = ResidentPath(options_.resident_dir, options_.gpu, options_.program);
  if (!path) return false;
  // The first may leave at the moment when we come, or hang.
  for (int tries = 0; tries < 2; ++tries) {
    std::optional<ResidentName> name;
    Deadline answer = deadline;
    auto client = ConnectResident(*path);
    if (client) {
      socket_ = std::move(client->socket);
      pidfd_ = std::move(client->pidfd);
      pid_ = client->pid;
      answer = Deadline::Sooner(deadline, Deadline::In(kResidentAnswer));
    } else if (client.error().code == Code::kNotFound) {
      auto claimed = ClaimResidentName(*path);
      if (!claimed && claimed.error().code == Code::kDeadlineExceeded) return false;
      if (!claimed) continue;
      name = std::move(*claimed);
      STASIS_TRY(Spawn(*path, name->socket.get()));
    } else {
      continue;
    }
    resident_ = true;
    Request hello = Make(Op::kHello);
    hello.id = ++last_id_;
    const bool asked =
        SendPacket(socket_.get(), &hello, sizeof hello, {}, MSG_DONTWAIT).has_value();
    pollfd p{socket_.get(), POLLIN, 0};
    const bool heard = asked && TEMP_FAILURE_RETRY(::poll(&p, 1, answer.PollTimeout())) > 0;
    if (asked && !heard) {
      const std::string how = End();
      if (client && !running() && !deadline.passed()) continue;
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("the mover of {} did not answer in time, and {}", options_.gpu.value,
                              running() ? how : "was ended"));
    }
    Reply reply;
    auto packet = ReceivePacket(socket_.get(), &reply, sizeof reply);
    if (packet && packet->size != 0) {
      if (wire::WhyInvalid(reply, packet->size, packet->fds.size()) != nullptr) reply.fatal = 1;
      if (reply.fatal != 0) End();
      // One whose context was broken by what happened to the GPU since: another has a new one.
      if (client && !running()) continue;
      STASIS_TRY(wire::ErrorOf(reply));
      if (!running()) return false;
      // Only now: one that hangs would keep the lock when we have long been killed.
      const int lock = options_.inherit_fd;
      if (lock >= 0) STASIS_TRY(Call(Make(Op::kHello), {&lock, 1}, deadline));
      return true;
    }
    // It works for somebody else, or has just left: it is no business of ours.
    socket_.Reset();
    Forget();
  }
  return false;
}

Status Mover::Spawn(const std::string& listen_path, int listen_fd) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return FailErrno(errno, "socketpair");
  }
  UniqueFd ours(fds[0]), theirs(fds[1]);
  SpawnOptions spawn;
  spawn.argv = {options_.program, "--gpu", options_.gpu.value};
  if (!options_.library.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--library", options_.library});
  }
  if (options_.idle_timeout.count() > 0) {
    spawn.argv.insert(spawn.argv.end(),
                      {"--idle-ms", std::to_string(options_.idle_timeout.count())});
  }
  spawn.env = ScrubbedEnvironment();
  spawn.env->push_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  spawn.fds = {{wire::kSocketFd, theirs.get()}};
  UniqueFd null;
  if (listen_fd >= 0) {
    spawn.argv.insert(spawn.argv.end(), {"--listen-as", listen_path});
    spawn.fds[wire::kListenFd] = listen_fd;
    // Nothing of the command that happens to start it: neither its terminal nor its folder.
    STASIS_ASSIGN(null, Open("/dev/null", O_WRONLY));
    spawn.fds[STDERR_FILENO] = null.get();
    spawn.working_directory = "/";
  } else if (options_.inherit_fd >= 0) {
    spawn.fds[wire::kInheritedFd] = options_.inherit_fd;
  }
  spawn.new_session = true;
  auto process = Annotate(Subprocess::Spawn(spawn), "start the mover of " + options_.gpu.value);
  if (!process) return Fail(std::move(process.error()));
  pidfd_.Reset(::fcntl(process->pidfd(), F_DUPFD_CLOEXEC, 0));
  if (!pidfd_) return FailErrno(errno, "duplicate a descriptor");
  pid_ = process->pid();
  child_ = std::move(*process);
  socket_ = std::move(ours);
  return {};
}

Result<Reply> Mover::Call(Request request, std::span<const int> fds, const Deadline& deadline,
                          const CopyOptions* options, uint64_t total, std::vector<UniqueFd>* out) {
  auto lost = [&](std::string why) {
    const bool broken = !why.empty();
    const std::string how = End();
    return Fail(Code::kUnavailable,
                fmt::format("the mover of {} {} when it was to {}", options_.gpu.value,
                            broken ? "sent " + why : how, wire::OpName(request.op)));
  };
  if (!socket_) {
    return Fail(Code::kUnavailable, "no mover runs for " + options_.gpu.value);
  }
  request.id = ++last_id_;
  if (auto sent = SendPacket(socket_.get(), &request, sizeof request, fds, MSG_DONTWAIT); !sent) {
    // Too many descriptors are under way between processes of this user: the mover is well.
    if (sent.error().raw == ETOOMANYREFS || sent.error().raw == EBADF) {
      return Fail(std::move(sent.error()));
    }
    return lost({});
  }
  for (;;) {
    pollfd p{socket_.get(), POLLIN, 0};
    const int ready = TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout()));
    if (ready == 0) {
      const std::string how = End();
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("the mover of {} did not {} in time, and {}", options_.gpu.value,
                              wire::OpName(request.op), running() ? how : "was ended"));
    }
    Reply reply;
    auto packet = ReceivePacket(socket_.get(), &reply, sizeof reply);
    if (!packet || packet->size == 0) return lost({});
    if (packet->fds_lost) {
      (void)lost({});
      return Fail(Code::kResourceExhausted, "we cannot hold as many descriptors as there are",
                  "raise the limit of open files (ulimit -n)");
    }
    const char* invalid = wire::WhyInvalid(reply, packet->size, packet->fds.size());
    if (invalid == nullptr && (reply.id != request.id || reply.op != request.op)) {
      invalid = "a reply that nobody asked for";
    }
    if (invalid != nullptr) return lost(invalid);
    if (reply.progress != 0) {
      if (options != nullptr && options->progress) options->progress(reply.bytes, total);
      continue;
    }
    if (reply.fatal != 0) End();
    if (auto status = wire::ErrorOf(reply); !status) return Fail(std::move(status.error()));
    if (out != nullptr) {
      for (UniqueFd& fd : packet->fds) out->push_back(std::move(fd));
    }
    return reply;
  }
}

Result<Reply> Mover::CallOrStart(const Request& request, std::span<const int> fds,
                                 const Deadline& deadline) {
  const bool fresh = !socket_;
  if (fresh) STASIS_TRY(Connect(deadline));
  auto reply = Call(request, fds, deadline);
  // It may have left between two requests, being idle; with that no work is lost.
  if (!reply && reply.error().code == Code::kUnavailable && !fresh && !socket_) {
    STASIS_TRY(Connect(deadline));
    reply = Call(request, fds, deadline);
  }
  return reply;
}

Result<MoverInfo> Mover::Start(const Deadline& deadline) {
  STASIS_ASSIGN(Reply reply, CallOrStart(Make(Op::kHello), {}, deadline));
  return MoverInfo{reply.bytes, reply.second, reply.third};
}

Status Mover::Attach(const Arena& arena, const Deadline& deadline) {
  Request request = Make(Op::kAttach);
  request.bytes = arena.capacity_bytes();
  const int fd = arena.fd();
  auto reply = CallOrStart(request, {&fd, 1}, deadline);
  if (!reply) return Fail(std::move(reply.error()));
  return {};
}

Status Mover::Detach(const Deadline& deadline) {
  STASIS_TRY(Call(Make(Op::kDetach), {}, deadline));
  return {};
}

Status Mover::Warm(uint64_t bytes, const Deadline& deadline) {
  Request request = Make(Op::kWarm);
  request.bytes = bytes;
  STASIS_TRY(Call(request, {}, deadline));
  return {};
}

Result<WireSpeed> Mover::Measure(uint64_t bytes, const Deadline& deadline) {
  Request request = Make(Op::kMeasure);
  request.bytes = bytes;
  STASIS_ASSIGN(Reply reply, Call(request, {}, deadline));
  return WireSpeed{reply.bytes, static_cast<double>(reply.second),
                   static_cast<double>(reply.third)};
}

Status Mover::PrepareNames(const image::BlockSecret& secret, const Deadline& deadline) {
  Request request = Make(Op::kPrepareNames);
  std::memcpy(request.secret, secret.data(), secret.size());
  auto reply = CallOrStart(request, {}, deadline);
  if (!reply) return Fail(std::move(reply.error()));
  return {};
}

Result<NamingSpeed> Mover::MeasureNaming(uint64_t bytes, const Deadline& deadline) {
  Request prepare = Make(Op::kPrepareNames);
  STASIS_ASSIGN(const image::BlockSecret secret, image::BlockKey::RandomSecret());
  std::memcpy(prepare.secret, secret.data(), secret.size());
  STASIS_ASSIGN(Reply prepared, CallOrStart(prepare, {}, deadline));
  Request request = Make(Op::kMeasureNames);
  request.bytes = bytes;
  STASIS_ASSIGN(Reply reply, Call(request, {}, deadline));
  return NamingSpeed{reply.bytes, static_cast<double>(reply.second),
                     static_cast<double>(prepared.elapsed_ns) / 1e9};
}

Status Mover::SendRanges(Op op, const std::vector<Range>& ranges, std::span<const int> fds,
                         const Deadline& deadline) {
  for (size_t first = 0; first < ranges.size(); first += wire::kMaxBatch) {
    Request request = Make(op);
    request.first = static_cast<uint32_t>(first);
    request.count = static_cast<uint32_t>(std::min<size_t>(wire::kMaxBatch, ranges.size() - first));
    for (uint32_t i = 0; i < request.count; ++i) {
      const Range& r = ranges[first + i];
      request.ranges[i] = {r.size_bytes, r.arena_offset, r.stored_bytes};
    }
    // Answered one by one: the kernel bounds the descriptors that are under way.
    STASIS_TRY(Call(request, fds.empty() ? fds : fds.subspan(first, request.count), deadline));
  }
  return {};
}

Result<CopyResult> Mover::Copy(const Request& request, int file, const CopyOptions& options,
                               const Deadline& deadline, uint64_t before_bytes) {
  CopyOptions told;
  if (options.progress) {
    told.progress = [&](uint64_t bytes, uint64_t total) {
      options.progress(before_bytes + bytes, total);
    };
  }
  STASIS_ASSIGN(Reply reply,
                Call(request, {&file, file < 0 ? 0u : 1u}, deadline, &told, total_bytes_));
  CopyResult result;
  result.copied_bytes = reply.bytes;
  result.cleared_bytes = reply.second;
  result.cold_bytes = reply.third;
  result.seconds = static_cast<double>(reply.elapsed_ns) / 1e9;
  result.zero_bytes = reply.zero_bytes;
  result.until_first_s = static_cast<double>(reply.until_first_ns) / 1e9;
  result.naming_s = static_cast<double>(reply.naming_ns) / 1e9;
  result.staged = reply.staged != 0;
  if (request.op == Op::kSave && options.checksum) {
    result.checksum = image::Id128::FromRaw(reply.checksum);
  }
  return result;
}

Status Mover::CheckAllCopied(const CopyResult& result) const {
  if (result.copied_bytes + result.cleared_bytes == total_bytes_) return {};
  return Fail(Code::kInternal, "the mover copied another number of bytes than it was to");
}

Result<CopyResult> Mover::SaveImported(const std::vector<Range>& ranges, const CopyOptions& options,
                                       const Deadline& deadline) {
  Request request = Make(Op::kSave);
  if (options.checksum) request.flags |= wire::kFlagChecksum;
  UniqueFd names;
  if (options.names) {
    request.flags |= wire::kFlagNames;
    std::vector<image::Id128> known = options.known;
    known.resize(BlockCount(ranges));
    STASIS_ASSIGN(names, MemoryFile("stasis-names", known));
  }
  STASIS_ASSIGN(CopyResult result, Copy(request, names.get(), options, deadline));
  STASIS_TRY(CheckAllCopied(result));
  if (!options.names) return result;
  result.names.resize(BlockCount(ranges));
  STASIS_TRY(
      PreadAll(names.get(), result.names.data(), result.names.size() * sizeof(image::Id128), 0));
  return result;
}

Result<CopyResult> Mover::Save(const std::vector<Range>& ranges, std::span<const int> fds,
                               const CopyOptions& options, const Deadline& deadline) {
  STASIS_ASSIGN(total_bytes_, TotalBytes(ranges));
  if (fds.size() != ranges.size()) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the program sent {} descriptors for {} allocations", fds.size(),
                            ranges.size()));
  }
  if (ranges.empty()) return CopyResult{};
  auto save = [&]() -> Result<CopyResult> {
    Request begin = Make(Op::kBeginSave);
    begin.count = static_cast<uint32_t>(ranges.size());
    begin.bytes = total_bytes_;
    STASIS_TRY(Call(begin, {}, deadline));
    STASIS_TRY(SendRanges(Op::kImport, ranges, fds, deadline));
    return SaveImported(ranges, options, deadline);
  };
  auto result = save();
  if (!result) (void)Release(Deadline::In(kReleaseLimit));
  return result;
}

Status Mover::PrepareLoad(const std::vector<Range>& ranges, uint64_t ballast_bytes,
                          const Deadline& deadline) {
  STASIS_ASSIGN(total_bytes_, TotalBytes(ranges));
  count_ = ranges.size();
  arena_bytes_ = 0;
  for (const Range& r : ranges) {
    arena_bytes_ = std::max(arena_bytes_, r.arena_offset + r.stored_bytes);
  }
  if (ranges.empty()) return Fail(Code::kInvalidArgument, "a load of nothing");
  auto prepare = [&]() -> Status {
    Request begin = Make(Op::kBeginLoad);
    begin.count = static_cast<uint32_t>(ranges.size());
    begin.bytes = total_bytes_;
    begin.ballast_bytes = ballast_bytes;
    STASIS_TRY(Call(begin, {}, deadline));
    return SendRanges(Op::kCreate, ranges, {}, deadline);
  };
  Status status = prepare();
  if (!status) (void)Release(Deadline::In(kReleaseLimit));
  return status;
}

Status Mover::FreeBallast(const Deadline& deadline) {
  STASIS_TRY(Call(Make(Op::kFreeBallast), {}, deadline));
  return {};
}

Result<CopyResult> Mover::Load(const CopyOptions& options, const Deadline& deadline) {
  auto load = [&]() -> Result<CopyResult> {
    CopyResult all;
    uint64_t loaded = 0;
    do {
      Request part = Make(Op::kLoad);
      if (options.filled && arena_bytes_ > 0) {
        STASIS_ASSIGN(part.bytes, options.filled(loaded));
        part.bytes = std::min(part.bytes, arena_bytes_);
        if (part.bytes <= loaded) return Fail(Code::kInternal, "a load that does not get on");
      }
      UniqueFd zero;
      if (loaded == 0 && !options.zero.empty()) {
        part.flags |= wire::kFlagSkip;
        STASIS_ASSIGN(zero, MemoryFile("stasis-zero", options.zero));
      }
      if (loaded == 0 && options.expected) {
        part.flags |= wire::kFlagChecksum;
        std::memcpy(part.checksum, options.expected->bytes.data(), options.expected->bytes.size());
      }
      STASIS_ASSIGN(CopyResult one, Copy(part, zero.get(), options, deadline, all.copied_bytes));
      all.copied_bytes += one.copied_bytes;
      all.cleared_bytes += one.cleared_bytes;
      all.cold_bytes += one.cold_bytes;
      all.seconds += one.seconds;
      all.staged |= one.staged;
      loaded = part.bytes == 0 ? arena_bytes_ : part.bytes;
    } while (loaded < arena_bytes_);
    STASIS_TRY(CheckAllCopied(all));
    return all;
  };
  auto result = load();
  if (!result) (void)Release(Deadline::In(kReleaseLimit));
  return result;
}

Result<std::vector<UniqueFd>> Mover::Export(const Deadline& deadline) {
  std::vector<UniqueFd> fds;
  fds.reserve(count_);
  while (fds.size() < count_) {
    Request request = Make(Op::kExport);
    request.first = static_cast<uint32_t>(fds.size());
    request.count = static_cast<uint32_t>(std::min<size_t>(wire::kMaxBatch, count_ - fds.size()));
    const size_t before = fds.size();
    STASIS_TRY(Call(request, {}, deadline, nullptr, 0, &fds));
    if (fds.size() != before + request.count) {
      return Fail(Code::kInternal, "the mover sent another number of descriptors than it was to");
    }
  }
  return fds;
}

Status Mover::Release(const Deadline& deadline) {
  if (!socket_) return {};
  STASIS_TRY(Call(Make(Op::kRelease), {}, deadline));
  return {};
}

}  // namespace stasis::dataplane
