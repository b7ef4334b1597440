#include "device/cuda/helper_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "abi/driver_kinds.h"
#include "base/deadline.h"
#include "base/descriptor_table.h"
#include "base/fd.h"
#include "base/thread.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/driver_library.h"
#include "device/cuda/gpu_uuid.h"
#include "device/cuda/helper_protocol.h"
#include "device/cuda/nvml.h"
#include "ipc/helper_process.h"
#include "ipc/message.h"
#include "ipc/resident.h"
#include "ipc/socket.h"
#include "process/proc.h"

namespace stasis::device::cuda {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's own names
using ipc::PutText;
using wire::Op;
using wire::Outcome;
using wire::Reply;
using wire::Request;

constexpr int kMaxInFlight = 256;

// Reads a device's free and total memory through its primary context, for a driver without NVML. On
// a real GPU this temporarily takes half a GiB of its memory.
CUresult MemoryByContext(const DriverFunctions& fn, CUdevice device, size_t* free, size_t* total) {
  CUcontext context;
  CUresult result = fn.cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS) return result;
  result = fn.cuCtxPushCurrent_v2(context);
  if (result == CUDA_SUCCESS) {
    result = fn.cuMemGetInfo_v2(free, total);
    fn.cuCtxPopCurrent_v2(&context);
  }
  fn.cuDevicePrimaryCtxRelease_v2(device);
  return result;
}

// Reads a device's free memory without a context, for a driver that has a directory open for each
// device, named by the device's index. The free space of the directory's file system is the
// device's free memory.
bool MemoryByFileSystem(const abi::DriverKind& kind, int index, uint64_t* free) {
  auto files = process::ReadOpenFiles(process::HostPid{::getpid()});
  if (!files) return false;
  for (const auto& file : *files) {
    struct statfs s;
    if (file.target != std::string(kind.device_files) + std::to_string(index)) continue;
    if (::fstatfs(file.fd, &s) != 0) return false;
    *free = static_cast<uint64_t>(s.f_bfree) * static_cast<uint64_t>(s.f_bsize);
    return true;
  }
  return false;
}

class Executor {
 public:
  explicit Executor(const ipc::HelperServerOptions& options) : options_(options) {}

  Reply Execute(const Request& request) {
    // The driver is loaded by the first request rather than by main(), so that the server notices a
    // closed socket even if cuInit hangs.
    std::call_once(opened_, [this] { driver_ = OpenDriver(options_.library); });
    Reply reply;
    reply.id = request.id;
    reply.op = request.op;
    Describe(reply.driver);
    if (request.op == Op::kHello) {
      if (!driver_.opened) reply.outcome = Outcome::kNoDriver;
      return reply;
    }
    if (request.op == Op::kGpus ? !driver_.initialised : !driver_.can_checkpoint) {
      reply.outcome = Outcome::kNoDriver;
      return reply;
    }
    if (CUresult result = Act(request, reply); result != CUDA_SUCCESS) {
      reply.outcome = Outcome::kDriverError;
      reply.cu_result = result;
      const char* name = nullptr;
      const char* text = nullptr;
      if (driver_.fn.cuGetErrorName != nullptr) driver_.fn.cuGetErrorName(result, &name);
      if (driver_.fn.cuGetErrorString != nullptr) driver_.fn.cuGetErrorString(result, &text);
      PutText(reply.cu_name, name != nullptr ? name : "");
      PutText(reply.cu_text, text != nullptr ? text : "");
      if (MayLast(result)) unreliable_ = true;
    }
    return reply;
  }

  // Returns true if later clients may use this driver. No request may be in progress.
  bool is_reliable() const {
    return (driver_.can_checkpoint || (driver_.hip && driver_.initialised)) && !unreliable_ &&
           !WasReplaced(driver_);
  }

 private:
  void Describe(wire::DriverRecord& record) const {
    if (driver_.kind != nullptr) PutText(record.kind, std::string(driver_.kind->name));
    PutText(record.version, driver_.version);
    record.api_version = driver_.api_version;
    record.can_checkpoint = driver_.can_checkpoint;
    PutText(record.why_not, driver_.why_not);
  }

  CUresult Act(const Request& request, Reply& reply) {
    const DriverFunctions& fn = driver_.fn;
    switch (request.op) {
      case Op::kHello:
      case Op::kEnd:
      case Op::kLeave:
        return CUDA_SUCCESS;
      case Op::kGpus:
        return Gpus(request.pid, reply);
      case Op::kState: {
        CUprocessState state = CU_PROCESS_STATE_RUNNING;
        CUresult result = fn.cuCheckpointProcessGetState(request.pid, &state);
        if (result == CUDA_SUCCESS) reply.state = state;
        return result;
      }
      case Op::kRestoreThread:
        return fn.cuCheckpointProcessGetRestoreThreadId(request.pid, &reply.tid);
      case Op::kLock: {
        CUcheckpointLockArgs args = {};
        args.timeoutMs = request.timeout_ms;
        return fn.cuCheckpointProcessLock(request.pid, &args);
      }
      case Op::kCheckpoint: {
        CUcheckpointCheckpointArgs args = {};
        return fn.cuCheckpointProcessCheckpoint(request.pid, &args);
      }
      case Op::kRestore: {
        static_assert(sizeof(wire::UuidPair) == sizeof(CUcheckpointGpuPair));
        CUcheckpointGpuPair pairs[wire::kMaxGpus];
        std::memcpy(pairs, request.pairs, sizeof pairs);
        CUcheckpointRestoreArgs args = {};
        args.gpuPairs = request.pair_count == 0 ? nullptr : pairs;
        args.gpuPairsCount = request.pair_count;
        return fn.cuCheckpointProcessRestore(request.pid, &args);
      }
      case Op::kUnlock: {
        CUcheckpointUnlockArgs args = {};
        return fn.cuCheckpointProcessUnlock(request.pid, &args);
      }
    }
    return CUDA_ERROR_INVALID_VALUE;
  }

  CUresult Gpus(pid_t pid, Reply& reply) {
    const DriverFunctions& fn = driver_.fn;
    int count = 0;
    if (CUresult result = fn.cuDeviceGetCount(&count); result != CUDA_SUCCESS) return result;
    count = std::clamp<int>(count, 0, wire::kMaxGpus);
    std::optional<Nvml> nvml;
    if (driver_.kind->has_nvml) nvml = Nvml::Open();
    for (int i = 0; i < count; ++i) {
      wire::GpuRecord& gpu = reply.gpus[i];
      if (CUresult result = OneGpu(i, gpu); result != CUDA_SUCCESS) return result;
      std::string uuid = ToText(gpu.uuid).value;
      auto memory = nvml ? nvml->MemoryOf(uuid) : std::nullopt;
      auto persistence = nvml ? nvml->PersistenceOf(uuid) : std::nullopt;
      if (persistence) {
        gpu.persistence = *persistence ? wire::Persistence::kOn : wire::Persistence::kOff;
      }
      if (memory) {
        gpu.free_bytes = memory->free_bytes;
      } else if (driver_.kind->is_hardware ||
                 !MemoryByFileSystem(*driver_.kind, i, &gpu.free_bytes)) {
        CUdevice device;
        size_t free = 0, total = 0;
        CUresult result = fn.cuDeviceGet(&device, i);
        if (result == CUDA_SUCCESS) result = MemoryByContext(fn, device, &free, &total);
        if (result != CUDA_SUCCESS) return result;
        gpu.free_bytes = free;
      }
      if (nvml && pid != 0) {
        for (const Nvml::User& user : nvml->UsersOf(uuid)) {
          if (user.pid != pid) continue;
          gpu.process_present = 1;
          gpu.process_bytes += user.bytes;
        }
      }
      reply.gpu_count = static_cast<uint32_t>(i) + 1;
    }
    return CUDA_SUCCESS;
  }

  CUresult OneGpu(int ordinal, wire::GpuRecord& gpu) const {
    const DriverFunctions& fn = driver_.fn;
    CUdevice device;
    CUuuid uuid;
    char name[sizeof gpu.name] = {};
    size_t total = 0;
    CUresult result = fn.cuDeviceGet(&device, ordinal);
    auto get_uuid = fn.cuDeviceGetUuid_v2 != nullptr ? fn.cuDeviceGetUuid_v2 : fn.cuDeviceGetUuid;
    if (result == CUDA_SUCCESS) result = get_uuid(&uuid, device);
    if (result == CUDA_SUCCESS) result = fn.cuDeviceGetName(name, sizeof name, device);
    if (result == CUDA_SUCCESS) result = fn.cuDeviceTotalMem_v2(&total, device);
    if (result != CUDA_SUCCESS) return result;
    std::memcpy(gpu.uuid.bytes, uuid.bytes, sizeof gpu.uuid.bytes);
    PutText(gpu.name, name);
    gpu.index = ordinal;
    gpu.total_bytes = total;
    return CUDA_SUCCESS;
  }

  const ipc::HelperServerOptions options_;
  std::atomic<bool> unreliable_ = false;
  std::once_flag opened_;
  DriverLibrary driver_;
};

// How long the end of a session waits for the threads of requests that have been answered.
constexpr std::chrono::milliseconds kAnsweredLimit{1000};

// A client from its connection until it has disconnected and all of its requests are finished. The
// destructor releases its lock.
struct Session {
  UniqueFd socket;
  UniqueFd lock;
};

class Server {
 public:
  explicit Server(const ipc::HelperServerOptions& options)
      : options_(options),
        executor_(options),
        session_(std::make_shared<Session>(UniqueFd(ipc::kHelperSocketFd))) {
    if (options.resident()) {
      listener_ = ipc::ListenAsHelper();
      name_.emplace(options.listen_path);
    }
  }

  [[noreturn]] void Run() {
    for (;;) {
      pollfd fds[] = {{session_ ? session_->socket.get() : -1, POLLIN, 0},
                      {listener_.get(), POLLIN, 0},
                      {name_ ? name_->fd() : -1, POLLIN, 0}};
      const int ready = TEMP_FAILURE_RETRY(::poll(fds, 3, Limit().PollTimeout()));
      if (ready < 0) KillSelf();
      // Check the time limit first, so that clients that keep connecting cannot postpone it.
      if (Limit().passed()) OnLimit();
      if (fds[2].revents != 0) CheckName();
      // Handle the disconnect before the new connection; one poll may report both.
      if (fds[0].revents != 0) Receive();
      if (fds[1].revents != 0) Accept();
    }
  }

 private:
  // Does not call exit(): the driver's destructors would run while threads may be inside the
  // driver.
  [[noreturn]] static void KillSelf() {
    ::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }

  int InFlight() {
    std::lock_guard lock(mutex_);
    return in_flight_;
  }

  // The time at which a resident helper without a client exits, or gives up on driver calls of the
  // last client.
  Deadline Limit() const { return session_ ? Deadline() : limit_; }

  void OnLimit() {
    if (InFlight() > 0) KillSelf();
    if (!settling_) ipc::ExitHelper(options_);
    StartIdleTime();
  }

  void CheckName() {
    unfindable_ = unfindable_ || name_->IsRemoved();
    if (unfindable_ && !session_ && InFlight() == 0) ::_exit(0);
  }

  void StartIdleTime() {
    settling_ = false;
    if (unfindable_) ::_exit(0);
    if (!executor_.is_reliable()) ipc::ExitHelper(options_);
    limit_ = options_.idle_timeout.count() == 0 ? Deadline() : Deadline::In(options_.idle_timeout);
  }

  void Accept() {
    UniqueFd client = ipc::AcceptClient(listener_.get());
    if (!client || session_ || InFlight() > 0) return;
    // The calls of the last client have returned. StartIdleTime() exits if later clients must not
    // use this helper, for example because the driver was replaced; the client then gets another
    // helper.
    StartIdleTime();
    session_ = std::make_shared<Session>(std::move(client));
  }

  // Requests in progress keep the session, and with it the lock.
  void EndSession() {
    session_.reset();
    if (!listener_) {
      // A private helper ends with its client: it exits, or kills itself if driver calls do not
      // return.
      std::unique_lock lock(mutex_);
      if (idle_.wait_for(lock, options_.settle_timeout, [this] { return in_flight_ == 0; })) {
        ::_exit(0);
      }
      KillSelf();
    }
    settling_ = InFlight() > 0;
    if (settling_) {
      limit_ = Deadline::In(options_.settle_timeout);
    } else {
      StartIdleTime();
    }
  }

  void Receive() {
    Request request;
    auto packet = ipc::ReceivePacket(session_->socket.get(), &request, sizeof request);
    if (!packet || packet->size == 0) return EndSession();
    // If descriptors were lost, the lock may be among them. Reject the request, so that the client
    // does not rely on a lock that the helper does not hold.
    const char* invalid = packet->fds_lost
                              ? "the request has more descriptors than the helper can hold"
                              : wire::WhyInvalid(request, packet->size);
    const bool has_lock = request.op == Op::kHello && packet->fds.size() == 1;
    if (invalid == nullptr && !packet->fds.empty() && !has_lock) {
      invalid = "descriptors where none belong";
    }
    if (invalid != nullptr) return Refuse(request, Outcome::kBadRequest, invalid);
    if (has_lock) session_->lock = std::move(packet->fds[0]);
    if (request.op == Op::kEnd || request.op == Op::kLeave) return End(request);
    {
      std::lock_guard lock(mutex_);
      if (in_flight_ == kMaxInFlight) {
        return Refuse(request, Outcome::kBusy, "too many requests at once");
      }
      ++in_flight_;
    }
    auto thread = Thread::Start([this, session = session_, request]() mutable {
      Send(*session, executor_.Execute(request));
      Leave(std::move(session));
    });
    if (thread) {
      std::move(*thread).Detach();
    } else {
      Leave({});
      Refuse(request, Outcome::kBusy, thread.error().ToString().c_str());
    }
  }

  // Ends the client's session. Before the reply is sent, the client's lock is released, and a
  // resident helper that is going to exit (kLeave) has removed its socket's name.
  void End(const Request& request) {
    if (!AwaitAnswered()) return Refuse(request, Outcome::kBusy, "other requests are in progress");
    session_->lock.Reset();
    const bool leaves = request.op == Op::kLeave;
    if (leaves && options_.resident()) ipc::RemoveResidentName(options_.listen_path);
    Reply reply;
    reply.id = request.id;
    reply.op = request.op;
    Send(*session_, reply);
    if (leaves) ::_exit(0);
    EndSession();
  }

  // Waits until the threads of answered requests have ended. A client may send its last request
  // before they have, because it already has their answers.
  bool AwaitAnswered() {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, kAnsweredLimit, [this] { return in_flight_ == 0; });
  }

  // Called at the end of a request. Drops the session and lowers the count under one mutex. So once
  // no request is in progress, the lock of a disconnected client has been released. A client that
  // acquires that lock is accepted, because it finds no request in progress.
  void Leave(std::shared_ptr<Session> session) {
    std::lock_guard lock(mutex_);
    session.reset();
    if (--in_flight_ == 0) idle_.notify_all();
  }

  // Ignores errors: a client that has disconnected needs no reply.
  static void Send(const Session& session, const Reply& reply) {
    (void)ipc::SendPacket(session.socket.get(), &reply, sizeof reply);
  }

  void Refuse(const Request& request, Outcome outcome, const char* why) {
    Reply reply;
    reply.id = request.id == 0 ? ~0ull : request.id;
    reply.op = request.op >= Op::kHello && request.op <= Op::kLast ? request.op : Op::kHello;
    reply.outcome = outcome;
    PutText(reply.cu_text, why);
    Send(*session_, reply);
  }

  const ipc::HelperServerOptions options_;
  Executor executor_;
  // Used by the reading thread only.
  std::shared_ptr<Session> session_;
  UniqueFd listener_;
  std::optional<ipc::NameWatch> name_;
  bool unfindable_ = false;  // no client can find this helper any more
  Deadline limit_;           // see Limit()
  bool settling_ = false;    // driver calls of a client that has disconnected are in progress

  std::mutex mutex_;
  std::condition_variable idle_;
  int in_flight_ = 0;
};

}  // namespace

void Serve(const ipc::HelperServerOptions& options) {
  // The driver opens files for each process, and the soft limit inherited from the first command
  // may be too low for that.
  (void)RaiseDescriptorLimit();
  // Never destroyed: threads may still use it when the process exits.
  auto& server = *new Server(options);
  server.Run();
}

}  // namespace stasis::device::cuda
