// What an image says about itself, as the rest of the house sees it. The bytes on disk are
// manifest_codec.h's and proto/stasis/image/v1/manifest.proto's business; units and meanings of the
// fields are written down there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "image/id128.h"
#include "image/limits.h"

namespace stasis::image {

struct Host {
  std::string name;
  std::string kernel_release;
  std::string machine;
  std::string boot_id;
  uint64_t boottime_ns = 0;
  uint64_t monotonic_ns = 0;
  uint64_t pid_namespace = 0;
};

struct Software {
  std::string stasis_version;
  std::string criu_version;
  std::string driver_version;
  std::string driver_kind;  // abi::DriverKind::name, or empty
};

struct Job {
  std::string id;  // empty: dumped by process id
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
  pid_t pid = 0;  // where the dump was made; what the rest of the manifest calls it by
  pid_t ppid = 0;
  uint64_t start_ticks = 0;
  std::string comm;
  std::string exe;
  GpuState recorded_state = GpuState::kNone;  // before the dump; kNone: no GPU process
  std::vector<std::string> gpu_uuids;
  uint64_t device_bytes = 0;
  pid_t namespace_pid = 0;  // what it calls itself by; 0 of an image that does not say: pid
  pid_t pgid = 0;
  pid_t sid = 0;

  // What CRIU brings it back under.
  pid_t restored_pid() const { return namespace_pid != 0 ? namespace_pid : pid; }
  bool is_cuda() const { return recorded_state != GpuState::kNone; }
};

struct Gpu {
  std::string uuid;
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;  // by the job: what a restore needs
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
  std::vector<Id128> checksums;  // one a chunk of Manifest::chunk_bytes
};

struct BlockNaming {
  std::string function;
  Id128 key_id;
};

// A file gpu/ID.pack or pages/ID.pack, perhaps one of other images too.
struct Pack {
  Id128 id;
  uint64_t size_bytes = 0;  // of the file
  Id128 index_checksum;
  bool linked = false;       // an earlier image wrote it
  uint64_t used_blocks = 0;  // different ones that this image refers to
  uint64_t used_bytes = 0;   // as they are stored
  int64_t checked_unix_ns = 0;
  bool holds_pages = false;  // of CPU memory (page_pack.h); else blocks of GPU memory (pack.h)

  std::string path() const { return folder() + ("/" + id.Hex() + ".pack"); }
  const char* folder() const { return holds_pages ? kPagesFolder : "gpu"; }
};

// Pages of a file one after the other: zeros, or what lies one after the other in a pack too.
struct PageRun {
  static constexpr uint32_t kZeros = ~0u;
  uint32_t pack = kZeros;  // index into Manifest::packs, of one that holds pages
  uint32_t first = 0;      // the first page's number in the pack
  uint32_t pages = 0;
  bool is_zero() const { return pack == kZeros; }
};

// A file of CRIU's that is not in the image: a restore makes it of pages.
struct PageFile {
  std::string path;  // "cpu/pages-1.img"
  uint64_t size_bytes = 0;
  std::vector<PageRun> runs;
};

struct DeviceRange {
  uint32_t gpu = 0;  // index into Manifest::gpus
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  uint32_t block_bytes = kBlockBytes;
  std::vector<Id128> blocks;  // an id of zeros: that block is all zero and stored nowhere
  pid_t pid = 0;
  std::vector<uint32_t> packs{};  // from format 2, one a block: index into Manifest::packs
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
  uint32_t format = kFormatVersion;  // what it was read from; we write no other than the newest
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
  std::optional<BlockNaming> block_naming;
  std::vector<DeviceRange> ranges;
  std::vector<Phase> phases;
  std::vector<RequiredFile> required_files;
  std::vector<Pack> packs;
  std::vector<PageFile> page_files;  // from format 3

  uint64_t TotalBytes() const;  // of what the image refers to: files, and blocks as they are stored
  uint64_t AddedBytes() const;  // of that, what no earlier image had
};

// Name, kernel, boot id and clocks of this machine now. Fields that the kernel does not tell stay
// empty.
Host HostNow();

}  // namespace stasis::image
