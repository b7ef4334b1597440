#include "image/manifest_codec.h"

#include <fmt/format.h>

#include "image/manifest_check.h"
#include "stasis/image/v1/manifest.pb.h"

namespace stasis::image {

namespace {

// How many records of a kind a manifest may hold, and how long each may be. A kind that is not in
// the table is one that we do not know; it is skipped, as one of a later, compatible Stasis.
struct Bound {
  uint32_t field;
  const char* name;
  uint64_t max_count;
  uint64_t max_bytes;
};
constexpr uint64_t kSmall = 64 << 10;
constexpr Bound kBounds[] = {
    {v1::Manifest::kImageIdFieldNumber, "image ids", 1, Id128::kBytes},
    {v1::Manifest::kHostFieldNumber, "hosts", 1, kSmall},
    {v1::Manifest::kSoftwareFieldNumber, "software records", 1, kSmall},
    {v1::Manifest::kJobFieldNumber, "jobs", 1, 8 << 20},
    {v1::Manifest::kProcessesFieldNumber, "processes", 1 << 20, kSmall},
    {v1::Manifest::kGpusFieldNumber, "GPUs", 4096, kSmall},
    {v1::Manifest::kExternalsFieldNumber, "external resources", 1 << 20, kSmall},
    {v1::Manifest::kCriuFieldNumber, "CRIU option records", 1, kSmall},
    {v1::Manifest::kFilesFieldNumber, "files", 1'000'000, kMaxManifestBytes},
    {v1::Manifest::kBlockNamingFieldNumber, "block namings", 1, kSmall},
    {v1::Manifest::kRangesFieldNumber, "device ranges", 1 << 20, kMaxManifestBytes},
    {v1::Manifest::kPhasesFieldNumber, "phases", 65'536, kSmall},
    {v1::Manifest::kRequiredFilesFieldNumber, "required files", 1 << 20, kSmall},
    {v1::Manifest::kPacksFieldNumber, "packs", kMaxPacks, kSmall},
    {v1::Manifest::kPageFilesFieldNumber, "files of pages", 65'536, kMaxManifestBytes},
};

tl::unexpected<Error> NoProtobuf() {
  return Fail(Code::kDataLoss, Domain::kImage, 0, "the manifest's body is no protobuf message");
}

// A protobuf varint from the front of `data`.
bool TakeVarint(std::string_view& data, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !data.empty(); shift += 7) {
    auto byte = static_cast<uint8_t>(data.front());
    data.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Walks the top level of the message without allocating, and holds it against kBounds.
Status CheckBounds(std::string_view body) {
  if (body.size() > kMaxManifestBytes) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("the manifest is {} bytes long; the most is {}", body.size(),
                            kMaxManifestBytes));
  }
  uint64_t counts[std::size(kBounds)] = {};
  while (!body.empty()) {
    uint64_t tag = 0;
    uint64_t length = 0;
    if (!TakeVarint(body, tag)) return NoProtobuf();
    switch (tag & 7) {
      case 0:  // varint
        if (!TakeVarint(body, length)) return NoProtobuf();
        continue;
      case 1:
        length = 8;
        break;
      case 2:  // length-delimited
        if (!TakeVarint(body, length)) return NoProtobuf();
        break;
      case 5:
        length = 4;
        break;
      default:  // groups: never in proto3
        return NoProtobuf();
    }
    if (length > body.size()) return NoProtobuf();
    body.remove_prefix(length);
    for (size_t i = 0; i < std::size(kBounds); ++i) {
      const Bound& bound = kBounds[i];
      if (bound.field != tag >> 3) continue;
      if (++counts[i] > bound.max_count || length > bound.max_bytes) {
        return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                    fmt::format("the manifest passes a limit on {}: at most {}, of at most {} "
                                "bytes each",
                                bound.name, bound.max_count, bound.max_bytes));
      }
    }
  }
  return {};
}

std::string JoinIds(const std::vector<Id128>& ids) {
  std::string bytes;
  bytes.reserve(ids.size() * Id128::kBytes);
  for (const Id128& id : ids) bytes += id.View();
  return bytes;
}

Result<std::vector<Id128>> SplitIds(const std::string& bytes, const char* what) {
  if (bytes.size() % Id128::kBytes != 0) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("a list of {} has {} bytes, no multiple of 16", what, bytes.size()));
  }
  std::vector<Id128> ids(bytes.size() / Id128::kBytes);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = Id128::FromRaw(&bytes[i * Id128::kBytes]);
  return ids;
}

Result<Id128> OneId(const std::string& bytes, const char* what) {
  if (bytes.size() != Id128::kBytes) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("{} has {} bytes instead of 16", what, bytes.size()));
  }
  return Id128::FromRaw(bytes.data());
}

template <class T>
std::vector<std::string> Strings(const T& repeated) {
  return {repeated.begin(), repeated.end()};
}

void Put(const Host& from, v1::Host* to) {
  to->set_name(from.name);
  to->set_kernel_release(from.kernel_release);
  to->set_machine(from.machine);
  to->set_boot_id(from.boot_id);
  to->set_boottime_ns(from.boottime_ns);
  to->set_monotonic_ns(from.monotonic_ns);
  to->set_pid_namespace(from.pid_namespace);
}

Host Take(const v1::Host& from) {
  return {from.name(),        from.kernel_release(), from.machine(),      from.boot_id(),
          from.boottime_ns(), from.monotonic_ns(),   from.pid_namespace()};
}

void Put(const Software& from, v1::Software* to) {
  to->set_stasis_version(from.stasis_version);
  to->set_criu_version(from.criu_version);
  to->set_driver_version(from.driver_version);
  to->set_driver_kind(from.driver_kind);
}

Software Take(const v1::Software& from) {
  return {from.stasis_version(), from.criu_version(), from.driver_version(), from.driver_kind()};
}

void Put(const Job& from, v1::Job* to) {
  to->set_id(from.id);
  for (const std::string& arg : from.argv) to->add_argv(arg);
  to->set_root_pid(from.root_pid);
  to->set_working_directory(from.working_directory);
  to->set_uid(from.uid);
  to->set_gid(from.gid);
  to->set_leave_running(from.leave_running);
  to->set_suspended(from.suspended);
}

Job Take(const v1::Job& from) {
  return {from.id(),
          Strings(from.argv()),
          static_cast<pid_t>(from.root_pid()),
          from.working_directory(),
          from.uid(),
          from.gid(),
          from.leave_running(),
          from.suspended()};
}

void Put(const Process& from, v1::Process* to) {
  to->set_pid(from.pid);
  to->set_ppid(from.ppid);
  to->set_start_ticks(from.start_ticks);
  to->set_comm(from.comm);
  to->set_exe(from.exe);
  to->set_recorded_state(static_cast<v1::Process::GpuState>(from.recorded_state));
  for (const std::string& uuid : from.gpu_uuids) to->add_gpu_uuids(uuid);
  to->set_device_bytes(from.device_bytes);
  to->set_namespace_pid(from.namespace_pid);
  to->set_pgid(from.pgid);
  to->set_sid(from.sid);
}

Result<Process> Take(const v1::Process& from) {
  if (!v1::Process::GpuState_IsValid(from.recorded_state())) {
    return Fail(Code::kUnimplemented, Domain::kImage, from.recorded_state(),
                fmt::format("process {} was in a GPU state ({}) that this Stasis does not know",
                            from.pid(), static_cast<int>(from.recorded_state())),
                "Use a newer Stasis.");
  }
  return Process{static_cast<pid_t>(from.pid()),
                 static_cast<pid_t>(from.ppid()),
                 from.start_ticks(),
                 from.comm(),
                 from.exe(),
                 static_cast<GpuState>(from.recorded_state()),
                 Strings(from.gpu_uuids()),
                 from.device_bytes(),
                 static_cast<pid_t>(from.namespace_pid()),
                 static_cast<pid_t>(from.pgid()),
                 static_cast<pid_t>(from.sid())};
}

void Put(const Gpu& from, v1::Gpu* to) {
  to->set_uuid(from.uuid);
  to->set_name(from.name);
  to->set_total_bytes(from.total_bytes);
  to->set_used_bytes(from.used_bytes);
}

Result<Gpu> Take(const v1::Gpu& from) {
  return Gpu{from.uuid(), from.name(), from.total_bytes(), from.used_bytes()};
}

void Put(const External& from, v1::External* to) {
  to->set_key(from.key);
  to->set_kind(from.kind);
  to->set_pid(from.pid);
  to->set_fd(from.fd);
  to->set_direction(from.direction);
  to->set_path(from.path);
}

Result<External> Take(const v1::External& from) {
  return External{from.key(), from.kind(),      static_cast<pid_t>(from.pid()),
                  from.fd(),  from.direction(), from.path()};
}

void Put(const CriuOptions& from, v1::CriuOptions* to) {
  to->set_tcp(from.tcp);
  to->set_file_locks(from.file_locks);
  to->set_link_remap(from.link_remap);
  to->set_shell_job(from.shell_job);
  for (const std::string& other : from.others) to->add_others(other);
}

CriuOptions Take(const v1::CriuOptions& from) {
  return {from.tcp(), from.file_locks(), from.link_remap(), from.shell_job(),
          Strings(from.others())};
}

void Put(const File& from, v1::File* to) {
  to->set_path(from.path);
  to->set_size_bytes(from.size_bytes);
  to->set_checksums(JoinIds(from.checksums));
}

Result<File> Take(const v1::File& from) {
  STASIS_ASSIGN(auto checksums, SplitIds(from.checksums(), "checksums"));
  return File{from.path(), from.size_bytes(), std::move(checksums)};
}

void Put(const Pack& from, v1::Pack* to) {
  to->set_id(std::string(from.id.View()));
  to->set_size_bytes(from.size_bytes);
  to->set_index_checksum(std::string(from.index_checksum.View()));
  to->set_linked(from.linked);
  to->set_used_blocks(from.used_blocks);
  to->set_used_bytes(from.used_bytes);
  to->set_checked_unix_ns(from.checked_unix_ns);
  to->set_holds_pages(from.holds_pages);
}

Result<Pack> Take(const v1::Pack& from) {
  STASIS_ASSIGN(Id128 id, OneId(from.id(), "a pack's id"));
  STASIS_ASSIGN(Id128 index_checksum, OneId(from.index_checksum(), "a pack's checksum"));
  return Pack{id,
              from.size_bytes(),
              index_checksum,
              from.linked(),
              from.used_blocks(),
              from.used_bytes(),
              from.checked_unix_ns(),
              from.holds_pages()};
}

void Put(const PageFile& from, v1::PageFile* to) {
  to->set_path(from.path);
  to->set_size_bytes(from.size_bytes);
  for (const PageRun& run : from.runs) {
    to->add_run_packs(run.is_zero() ? 0 : run.pack + 1);
    to->add_run_firsts(run.first);
    to->add_run_pages(run.pages);
  }
}

Result<PageFile> Take(const v1::PageFile& from) {
  PageFile file{from.path(), from.size_bytes(), {}};
  const int count = from.run_packs_size();
  if (from.run_firsts_size() != count || from.run_pages_size() != count) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                "a file of pages has lists of different lengths");
  }
  file.runs.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const uint32_t pack = from.run_packs(i);
    file.runs.push_back(
        {pack == 0 ? PageRun::kZeros : pack - 1, from.run_firsts(i), from.run_pages(i)});
  }
  return file;
}

void Put(const DeviceRange& from, v1::DeviceRange* to) {
  to->set_gpu(from.gpu);
  to->set_address(from.address);
  to->set_size_bytes(from.size_bytes);
  to->set_block_bytes(from.block_bytes);
  to->set_blocks(JoinIds(from.blocks));
  to->set_pid(from.pid);
  to->mutable_packs()->Add(from.packs.begin(), from.packs.end());
}

Result<DeviceRange> Take(const v1::DeviceRange& from) {
  STASIS_ASSIGN(auto blocks, SplitIds(from.blocks(), "blocks"));
  return DeviceRange{from.gpu(),
                     from.address(),
                     from.size_bytes(),
                     from.block_bytes(),
                     std::move(blocks),
                     static_cast<pid_t>(from.pid()),
                     {from.packs().begin(), from.packs().end()}};
}

void Put(const Phase& from, v1::Phase* to) {
  to->set_name(from.name);
  to->set_start_seconds(from.start_seconds);
  to->set_seconds(from.seconds);
  to->set_bytes(from.bytes);
  to->set_parallel_group(from.parallel_group);
}

Result<Phase> Take(const v1::Phase& from) {
  return Phase{from.name(), from.start_seconds(), from.seconds(), from.bytes(),
               from.parallel_group()};
}

void Put(const RequiredFile& from, v1::RequiredFile* to) {
  to->set_path(from.path);
  to->set_size_bytes(from.size_bytes);
  to->set_build_id(from.build_id);
}

Result<RequiredFile> Take(const v1::RequiredFile& from) {
  return RequiredFile{from.path(), from.size_bytes(), from.build_id()};
}

template <class Domain, class Repeated>
void PutAll(const std::vector<Domain>& from, Repeated* to) {
  for (const Domain& item : from) Put(item, to->Add());
}

template <class Domain, class Repeated>
Status TakeAll(const Repeated& from, std::vector<Domain>& to) {
  to.reserve(static_cast<size_t>(from.size()));
  for (const auto& item : from) {
    STASIS_ASSIGN(Domain taken, Take(item));
    to.push_back(std::move(taken));
  }
  return {};
}

}  // namespace

Result<std::string> EncodeManifest(const Manifest& manifest) {
  if (manifest.format != kFormatVersion) {
    return Fail(Code::kInternal, Domain::kImage, 0,
                fmt::format("an image of format {} cannot be written", manifest.format));
  }
  STASIS_TRY(CheckManifest(manifest));
  v1::Manifest message;
  message.set_image_id(std::string(manifest.image_id.View()));
  message.set_created_unix_ns(manifest.created_unix_ns);
  Put(manifest.host, message.mutable_host());
  Put(manifest.software, message.mutable_software());
  Put(manifest.job, message.mutable_job());
  PutAll(manifest.processes, message.mutable_processes());
  PutAll(manifest.gpus, message.mutable_gpus());
  PutAll(manifest.externals, message.mutable_externals());
  Put(manifest.criu, message.mutable_criu());
  message.set_chunk_bytes(manifest.chunk_bytes);
  PutAll(manifest.files, message.mutable_files());
  if (manifest.block_naming) {
    message.mutable_block_naming()->set_function(manifest.block_naming->function);
    message.mutable_block_naming()->set_key_id(std::string(manifest.block_naming->key_id.View()));
  }
  PutAll(manifest.ranges, message.mutable_ranges());
  PutAll(manifest.phases, message.mutable_phases());
  PutAll(manifest.required_files, message.mutable_required_files());
  PutAll(manifest.packs, message.mutable_packs());
  PutAll(manifest.page_files, message.mutable_page_files());

  std::string body = message.SerializeAsString();
  // A text or a list that is too long would make an image that nobody can open.
  if (auto again = DecodeManifest(body); !again) {
    return Fail(std::move(again.error()).WithContext("the new manifest would be unreadable"));
  }
  return body;
}

Result<Manifest> DecodeManifest(std::string_view body, uint32_t format) {
  STASIS_TRY(CheckBounds(body));
  v1::Manifest message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size()))) return NoProtobuf();

  Manifest manifest;
  manifest.format = format;
  STASIS_ASSIGN(manifest.image_id, OneId(message.image_id(), "the image's id"));
  manifest.created_unix_ns = message.created_unix_ns();
  manifest.host = Take(message.host());
  manifest.software = Take(message.software());
  manifest.job = Take(message.job());
  STASIS_TRY(TakeAll(message.processes(), manifest.processes));
  STASIS_TRY(TakeAll(message.gpus(), manifest.gpus));
  STASIS_TRY(TakeAll(message.externals(), manifest.externals));
  manifest.criu = Take(message.criu());
  manifest.chunk_bytes = message.chunk_bytes();
  STASIS_TRY(TakeAll(message.files(), manifest.files));
  if (message.has_block_naming()) {
    manifest.block_naming.emplace();
    manifest.block_naming->function = message.block_naming().function();
    STASIS_ASSIGN(manifest.block_naming->key_id,
                  OneId(message.block_naming().key_id(), "the block key's id"));
  }
  STASIS_TRY(TakeAll(message.ranges(), manifest.ranges));
  STASIS_TRY(TakeAll(message.phases(), manifest.phases));
  STASIS_TRY(TakeAll(message.required_files(), manifest.required_files));
  STASIS_TRY(TakeAll(message.packs(), manifest.packs));
  STASIS_TRY(TakeAll(message.page_files(), manifest.page_files));
  STASIS_TRY(CheckManifest(manifest));
  return manifest;
}

}  // namespace stasis::image
