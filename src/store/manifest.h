// The manifest, which describes an image. manifest_codec.h encodes and decodes it. Units and
// meanings of the fields are documented in proto/stasis/image/v1/manifest.proto.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/id128.h"
#include "store/limits.h"

namespace stasis::store {

struct Host {
  std::string name;
  std::string kernel_release;
  std::string machine;
  std::string boot_id;
  uint64_t boottime_ns = 0;
  uint64_t monotonic_ns = 0;
  uint64_t pid_namespace = 0;
  uint64_t page_bytes = 0;  // of the kernel; 0 if unknown
};

struct Software {
  std::string stasis_version;
  std::string criu_version;
  std::string driver_version;
  std::string driver_kind;   // "nvidia" or another of abi/driver_kinds.h; or empty
  std::string gpu_topology;  // AMD GPUs: device/hip/criu_plugin.h
};

struct Job {
  std::string id;  // empty if the program was dumped by process id
  std::vector<std::string> argv;
  pid_t root_pid = 0;
  std::string working_directory;
  uint32_t uid = 0;
  uint32_t gid = 0;
  bool leave_running = false;
  bool suspended = false;
};

enum class GpuState : uint8_t { kNone, kRunning, kLocked, kCheckpointed, kFailed };

struct Process {
  pid_t pid = 0;  // in the pid namespace of the dump; other records refer to this number
  pid_t ppid = 0;
  uint64_t start_ticks = 0;
  std::string comm;
  std::string exe;
  GpuState recorded_state = GpuState::kNone;  // before the dump; kNone if it used no GPU
  std::vector<std::string> gpu_uuids;
  uint64_t device_bytes = 0;
  pid_t namespace_pid = 0;  // in the program's own pid namespace; 0 if it is the same as pid
  pid_t pgid = 0;
  pid_t sid = 0;
  // The GPUs that the agent showed to the process, by its ordinals, if it hid others; else empty.
  std::vector<std::string> visible_gpu_uuids = {};

  // The process id after a restore.
  pid_t restored_pid() const { return namespace_pid != 0 ? namespace_pid : pid; }
  bool is_cuda() const { return recorded_state != GpuState::kNone; }
};

struct Gpu {
  std::string uuid;
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;  // by the program; a restore needs the same amount
};

struct External {
  std::string key;
  std::string kind;
  pid_t pid = 0;
  int fd = -1;
  std::string direction;
  std::string path;
};

struct CriuOptions {
  std::string tcp = "refuse";
  bool file_locks = false;
  bool link_remap = false;
  bool shell_job = false;
  std::vector<std::string> others;
};

struct File {
  std::string path;
  uint64_t size_bytes = 0;
  std::vector<Id128> checksums;  // one for each chunk of Manifest::chunk_bytes
};

// The function and key of the unit names (unit_names.h).
struct UnitNaming {
  std::string function;
  Id128 key_id;
};

// A file packs/ID.pack, possibly shared with other images (pack_index.h).
struct Pack {
  Id128 id;
  uint64_t size_bytes = 0;  // of the file
  Id128 index_checksum;
  uint32_t unit_bytes = kBlockBytes;  // or kPageBytes
  bool linked = false;                // an earlier image wrote it
  uint64_t used_units = 0;            // different units to which this image refers
  uint64_t used_bytes = 0;            // of their extents, as stored
  int64_t checked_unix_ns = 0;        // when these units were last written or compared

  std::string path() const { return std::string(kPacksFolder) + "/" + id.Hex() + ".pack"; }
};

// Units that follow each other: zero units, or units with consecutive numbers in a pack.
struct UnitRun {
  static constexpr uint32_t kZeros = ~0u;
  uint32_t pack = kZeros;  // index into Manifest::packs
  uint32_t first = 0;      // number of the first unit in the pack; 0 for zeros
  uint32_t units = 0;
  bool is_zero() const { return pack == kZeros; }
};

// Calls f(run, offset, bytes) for each run of a sequence of `size_bytes` bytes in units of
// `unit_bytes`, of which the last may be short.
template <class F>
void ForEachRun(const std::vector<UnitRun>& runs, uint32_t unit_bytes, uint64_t size_bytes, F f) {
  uint64_t at = 0;
  for (const UnitRun& run : runs) {
    const uint64_t bytes = std::min(uint64_t{run.units} * unit_bytes, size_bytes - at);
    f(run, at, bytes);
    at += bytes;
  }
}
// Returns how many bytes of a sequence are in zero units.
uint64_t ZeroBytes(const std::vector<UnitRun>& runs, uint32_t unit_bytes, uint64_t size_bytes);

// A file of CRIU that is stored as pages in packs. A restore writes the file again.
struct PageFile {
  std::string path;  // "cpu/pages-1.img"
  uint64_t size_bytes = 0;
  std::vector<UnitRun> runs;
};

// GPU memory of a process.
struct DeviceRange {
  uint32_t gpu = 0;  // index into Manifest::gpus
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  uint32_t block_bytes = kBlockBytes;
  std::vector<UnitRun> runs;
  pid_t pid = 0;
};

struct Phase {
  std::string name;
  double start_seconds = 0;
  double seconds = 0;
  uint64_t bytes = 0;
  std::string parallel_group;
};

struct RequiredFile {
  std::string path;
  uint64_t size_bytes = 0;
  std::string build_id;
};

struct Manifest {
  Id128 image_id;
  int64_t created_unix_ns = 0;
  Host host;
  Software software;
  Job job;
  std::vector<Process> processes;
  std::vector<Gpu> gpus;
  std::vector<External> externals;
  CriuOptions criu;
  uint32_t chunk_bytes = kChunkBytes;
  std::vector<File> files;
  std::optional<UnitNaming> unit_naming;
  std::vector<DeviceRange> ranges;
  std::vector<Phase> phases;
  std::vector<RequiredFile> required_files;
  std::vector<Pack> packs;
  std::vector<PageFile> page_files;
  // The memory of `ranges` is not in this image, and their runs are zeros. Such an image exists
  // only while it is restored (repository/streamed_image.h).
  bool ranges_elsewhere = false;

  uint64_t TotalBytes() const;  // of files, and of units as they are stored
  uint64_t AddedBytes() const;  // the same without units of earlier images
};

// Returns name, kernel, boot id and clocks of this machine. Fields that the kernel does not provide
// stay empty.
Host HostNow();

}  // namespace stasis::store
