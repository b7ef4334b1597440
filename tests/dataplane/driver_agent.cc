#include "driver_agent.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "base/file.h"
#include "base/install_layout.h"
#include "device/cuda/gpu_uuid.h"
#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/cuda/driver_functions.h"

// LeakSanitizer crashes at exit on the driver's threads and mappings in this process ("Tracer
// caught signal 11"). The rest of AddressSanitizer stays enabled.
extern "C" int __lsan_is_turned_off();  // NOLINT: the sanitizer's name
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() { return 1; }

namespace stasis::dataplane::testing {
namespace {

using namespace stasis::cuda;  // NOLINT

void* library = nullptr;

template <class Function, class... Arguments>
CUresult CallDriver(const char* symbol, Arguments... arguments) {
  auto function = reinterpret_cast<Function*>(::dlsym(library, symbol));
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
}
#define MUST(symbol, ...)                                                 \
  do {                                                                    \
    const CUresult result = CallDriver<fn::symbol>(#symbol, __VA_ARGS__); \
    if (result != CUDA_SUCCESS) {                                         \
      ADD_FAILURE() << #symbol << " answers " << result;                  \
      throw std::runtime_error(#symbol);                                  \
    }                                                                     \
  } while (0)

// Fills one allocation; word i is derived from the seed, the allocation and i.
void Fill(std::vector<uint64_t>& words, uint64_t seed, uint64_t allocation) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + allocation * 0xD1B54A32D192ED03ull + 1;
  for (uint64_t& word : words) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    word = x;
  }
}

const std::string& SoftgpuDir() {
  static const std::string dir = [] {
    char name[] = "/tmp/stasis-dataplane-softgpu.XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  return dir;
}

std::vector<GpuOfTest> StartDriver() {
  // One driver for all tests of this process; its directory is removed at the end.
  if (OnSoftgpu()) {
    ::setenv("SOFTGPU_DIR", SoftgpuDir().c_str(), 1);
    ::setenv("SOFTGPU_DEVICES", "2", 1);
    const char* memory = std::getenv("STASIS_TEST_GPU_MEMORY");
    ::setenv("SOFTGPU_MEMORY", memory == nullptr ? "1536M" : memory, 1);
    std::atexit([] { std::filesystem::remove_all(SoftgpuDir()); });
  }
  library = ::dlopen(DriverPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  MUST(cuInit, 0u);
  int count = 0;
  MUST(cuDeviceGetCount, &count);
  std::vector<GpuOfTest> gpus;
  for (int i = 0; i < count; ++i) {
    device::cuda::wire::Uuid bytes;
    CUuuid uuid;
    MUST(cuDeviceGetUuid_v2, &uuid, CUdevice{i});
    std::memcpy(bytes.bytes, uuid.bytes, sizeof bytes.bytes);
    gpus.push_back({i, device::cuda::ToText(bytes)});
  }
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return gpus;
}

void UseGpu(int ordinal) {
  CUcontext context;
  MUST(cuDevicePrimaryCtxRetain, &context, CUdevice{ordinal});
  MUST(cuCtxSetCurrent, context);
}

}  // namespace

std::string DriverPath() {
  if (const char* driver = std::getenv("STASIS_TEST_DRIVER")) return driver;
  return *InstallRoot() + "/lib/softgpu/libcuda.so.1";
}

bool OnSoftgpu() { return std::getenv("STASIS_TEST_DRIVER") == nullptr; }

const std::vector<GpuOfTest>& Gpus() {
  static const std::vector<GpuOfTest> gpus = StartDriver();
  return gpus;
}

uint64_t FreeGpuBytes(int ordinal) {
  UseGpu(ordinal);
  size_t free = 0, total = 0;
  MUST(cuMemGetInfo_v2, &free, &total);
  return free;
}

uint64_t FreeGpuBytesSoon(int ordinal, uint64_t expected) {
  const Deadline deadline = Deadline::In(std::chrono::seconds(10));
  uint64_t free;
  while ((free = FreeGpuBytes(ordinal)) != expected && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return free;
}

DriverAgent::DriverAgent(int ordinal) : ordinal_(ordinal) {
  Gpus();
  UseGpu(ordinal_);
}

void DriverAgent::Map(const std::vector<CUmemGenericAllocationHandle>& handles) {
  CUmemAccessDesc access = {};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal_};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuMemAddressReserve, &base_, size_t{total_}, size_t{0}, CUdeviceptr{0}, 0ull);
  uint64_t at = 0;
  for (size_t i = 0; i < handles.size(); ++i) {
    MUST(cuMemMap, base_ + at, size_t{sizes_[i]}, size_t{0}, handles[i], 0ull);
    at += sizes_[i];
  }
  MUST(cuMemSetAccess, base_, size_t{total_}, &access, size_t{1});
  handles_ = handles;
  held_ = true;
}

void DriverAgent::Create(const std::vector<uint64_t>& sizes, uint64_t seed) {
  UseGpu(ordinal_);
  kept_.clear();
  sizes_ = sizes;
  seed_ = seed;
  total_ = 0;
  for (uint64_t size : sizes) total_ += size;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal_};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::vector<CUmemGenericAllocationHandle> handles(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    MUST(cuMemCreate, &handles[i], size_t{sizes[i]},
         static_cast<const CUmemAllocationProp*>(&properties), 0ull);
  }
  Map(handles);
  uint64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<uint64_t> words(sizes[i] / 8);
    Fill(words, seed_, i);
    MUST(cuMemcpyHtoD_v2, base_ + at, static_cast<const void*>(words.data()), size_t{sizes[i]});
    at += sizes[i];
  }
}

void DriverAgent::Clear(uint64_t offset, uint64_t bytes) {
  UseGpu(ordinal_);
  MUST(cuMemsetD8_v2, base_ + offset, static_cast<unsigned char>(0), size_t{bytes});
}

std::string DriverAgent::Read(uint64_t offset, uint64_t bytes) {
  UseGpu(ordinal_);
  std::string data(bytes, '\0');
  MUST(cuMemcpyDtoH_v2, static_cast<void*>(data.data()), base_ + offset, size_t{bytes});
  return data;
}

std::vector<Range> DriverAgent::ranges() const {
  std::vector<Range> ranges;
  uint64_t at = 0;
  for (uint64_t size : sizes_) {
    ranges.push_back({base_ + at, size});
    at += size;
  }
  EXPECT_TRUE(LayOut(ranges));
  return ranges;
}

std::vector<UniqueFd> DriverAgent::Export() {
  if (!kept_.empty()) return std::move(kept_);
  std::vector<UniqueFd> fds;
  for (auto handle : handles_) {
    int fd = -1;
    MUST(cuMemExportToShareableHandle, static_cast<void*>(&fd), handle,
         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull);
    fds.emplace_back(fd);
  }
  return fds;
}

void DriverAgent::Release() {
  if (!held_) return;
  held_ = false;
  UseGpu(ordinal_);
  MUST(cuMemUnmap, base_, size_t{total_});
  for (auto handle : handles_) MUST(cuMemRelease, handle);
  MUST(cuMemAddressFree, base_, size_t{total_});
  handles_.clear();
  kept_.clear();
}

void DriverAgent::TakeBack(const std::vector<UniqueFd>& fds) {
  UseGpu(ordinal_);
  ASSERT_EQ(fds.size(), sizes_.size());
  std::vector<CUmemGenericAllocationHandle> handles(fds.size());
  for (size_t i = 0; i < fds.size(); ++i) {
    MUST(cuMemImportFromShareableHandle, &handles[i],
         reinterpret_cast<void*>(static_cast<intptr_t>(fds[i].get())),
         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    kept_.emplace_back(::fcntl(fds[i].get(), F_DUPFD_CLOEXEC, 0));
  }
  Map(handles);
}

void DriverAgent::Verify(const std::vector<size_t>& zero) {
  ASSERT_TRUE(held_);
  UseGpu(ordinal_);
  uint64_t at = 0;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    std::vector<uint64_t> found(sizes_[i] / 8), expected(sizes_[i] / 8);
    if (std::find(zero.begin(), zero.end(), i) == zero.end()) Fill(expected, seed_, i);
    MUST(cuMemcpyDtoH_v2, static_cast<void*>(found.data()), base_ + at, size_t{sizes_[i]});
    ASSERT_TRUE(found == expected) << "allocation " << i << " is not what it was";
    at += sizes_[i];
  }
}

std::vector<int> Raw(const std::vector<UniqueFd>& fds) {
  std::vector<int> raw;
  for (const UniqueFd& fd : fds) raw.push_back(fd.get());
  return raw;
}

void DataplaneTest::SetUp() {
  Gpus();
  char memory[] = "/dev/shm/stasis-dataplane-test.XXXXXX";
  char disk[] = "/var/tmp/stasis-dataplane-test.XXXXXX";
  memory_dir_ = ::mkdtemp(memory);
  disk_dir_ = ::mkdtemp(disk);
  paths_ = Paths{disk_dir_ + "/run", disk_dir_ + "/data"};
  ASSERT_TRUE(MakeDirs(paths_.run));
  // Small chunks, so that a small test has many of them.
  if (OnSoftgpu()) ::setenv("STASIS_MOVER_CHUNK_MIB", "4", 1);
}

void DataplaneTest::TearDown() {
  std::filesystem::remove_all(memory_dir_);
  std::filesystem::remove_all(disk_dir_);
}

ArenaStore DataplaneTest::OpenStore(ArenaOptions options) {
  options.place = memory_dir_;
  options.may_mount = false;
  auto store = ArenaStore::Open(paths_, options);
  if (!store) throw std::runtime_error(store.error().ToString());
  return std::move(*store);
}

MoverOptions DataplaneTest::OptionsFor(int ordinal) const {
  MoverOptions options;
  options.program = *LibexecProgram("stasis-mover");
  options.gpu = Gpus().at(static_cast<size_t>(ordinal)).uuid;
  if (OnSoftgpu()) options.library = DriverPath();
  return options;
}

ArenaKey DataplaneTest::KeyOf(int ordinal) const {
  return {process::ReadStat({::getpid()})->id, Gpus().at(static_cast<size_t>(ordinal)).uuid};
}

void DataplaneTest::Fault(pid_t pid, const std::string& rules) {
  ASSERT_TRUE(WriteFileDurably(SoftgpuDir() + "/fault." + std::to_string(pid), rules));
}

}  // namespace stasis::dataplane::testing
