#include "device/cuda/helper_server.h"

#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "base/thread.h"
#include "device/cuda/driver_library.h"
#include "device/cuda/gpu_uuid.h"
#include "device/cuda/helper_protocol.h"
#include "device/cuda/nvml.h"
#include "ipc/helper_process.h"
#include "ipc/message.h"
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
// a real GPU this temporarily takes half a GiB of its memory; contexts of softgpu are small.
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

// The same for softgpu without a context: the library has each device's file system open as the
// directory /softgpu/N.
bool MemoryOfSoftgpu(int index, uint64_t* free) {
  auto files = process::ReadOpenFiles(process::HostPid{::getpid()});
  if (!files) return false;
  for (const auto& file : *files) {
    struct statfs s;
    if (file.target != "/softgpu/" + std::to_string(index)) continue;
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
    // The first request loads the driver, not main(), so that the server notices a closed socket
    // even if cuInit hangs.
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
    }
    return reply;
  }

 private:
  void Describe(wire::DriverRecord& record) const {
    PutText(record.kind, driver_.kind);
    PutText(record.version, driver_.version);
    record.api_version = driver_.api_version;
    record.can_checkpoint = driver_.can_checkpoint;
    PutText(record.why_not, driver_.why_not);
  }

  CUresult Act(const Request& request, Reply& reply) {
    const DriverFunctions& fn = driver_.fn;
    switch (request.op) {
      case Op::kHello:
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
    if (driver_.kind == "nvidia") nvml = Nvml::Open();
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
      } else if (driver_.kind != "softgpu" || !MemoryOfSoftgpu(i, &gpu.free_bytes)) {
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
  std::once_flag opened_;
  DriverLibrary driver_;
};

// Counts the requests in progress.
class InFlight {
 public:
  bool Enter() {
    std::lock_guard lock(mutex_);
    if (count_ == kMaxInFlight) return false;
    ++count_;
    return true;
  }
  void Leave() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) idle_.notify_all();
  }
  // Returns true if all requests finished.
  bool WaitUntilIdle(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return idle_.wait_for(lock, limit, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  int count_ = 0;
};

// Ignores errors: a client that has disconnected needs no reply.
void Send(const Reply& reply) { (void)ipc::SendPacket(ipc::kHelperSocketFd, &reply, sizeof reply); }

void Refuse(const Request& request, Outcome outcome, const char* why) {
  Reply reply;
  reply.id = request.id == 0 ? ~0ull : request.id;
  reply.op = request.op >= Op::kHello && request.op <= Op::kLast ? request.op : Op::kHello;
  reply.outcome = outcome;
  PutText(reply.cu_text, why);
  Send(reply);
}

}  // namespace

void Serve(const ipc::HelperServerOptions& options) {
  // Never destroyed: threads may still use them when the process exits.
  auto& executor = *new Executor(options);
  auto& in_flight = *new InFlight;
  for (;;) {
    Request request;
    auto packet = ipc::ReceivePacket(ipc::kHelperSocketFd, &request, sizeof request);
    if (!packet || packet->size == 0) break;
    if (const char* why = wire::WhyInvalid(request, packet->size)) {
      Refuse(request, Outcome::kBadRequest, why);
      continue;
    }
    if (!in_flight.Enter()) {
      Refuse(request, Outcome::kBusy, "too many requests at once");
      continue;
    }
    auto thread = Thread::Start([&executor, &in_flight, request] {
      Send(executor.Execute(request));
      in_flight.Leave();
    });
    if (thread) {
      std::move(*thread).Detach();
    } else {
      in_flight.Leave();
      Refuse(request, Outcome::kBusy, thread.error().ToString().c_str());
    }
  }
  // Not exit(): the driver's destructors would run while threads may be inside the driver.
  if (in_flight.WaitUntilIdle(options.settle_timeout)) ::_exit(0);
  ::kill(::getpid(), SIGKILL);
  ::_exit(1);
}

}  // namespace stasis::device::cuda
