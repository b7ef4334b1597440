#include "store/manifest_codec.h"

#include <fmt/format.h>

#include "stasis/image/v1/manifest.pb.h"
#include "store/manifest_check.h"

namespace stasis::store {

namespace {

namespace pb = image::v1;

// The maximum number of records of a kind in a manifest, and the maximum bytes of each. Kinds that
// are not in the table are skipped: a later, compatible Stasis may write them.
struct Bound {
  uint32_t field;
  const char* name;
  uint64_t max_count;
  uint64_t max_bytes;
};
constexpr uint64_t kSmall = 64 << 10;
constexpr Bound kBounds[] = {
    {pb::Manifest::kImageIdFieldNumber, "image ids", 1, Id128::kBytes},
    {pb::Manifest::kHostFieldNumber, "hosts", 1, kSmall},
    {pb::Manifest::kSoftwareFieldNumber, "software records", 1, kSmall},
    {pb::Manifest::kJobFieldNumber, "jobs", 1, 8 << 20},
    {pb::Manifest::kProcessesFieldNumber, "processes", 1 << 20, kSmall},
    {pb::Manifest::kGpusFieldNumber, "GPUs", 4096, kSmall},
    {pb::Manifest::kExternalsFieldNumber, "external resources", 1 << 20, kSmall},
    {pb::Manifest::kCriuFieldNumber, "CRIU option records", 1, kSmall},
    {pb::Manifest::kFilesFieldNumber, "files", 1'000'000, kMaxManifestBytes},
    {pb::Manifest::kUnitNamingFieldNumber, "unit namings", 1, kSmall},
    {pb::Manifest::kRangesFieldNumber, "device ranges", 1 << 20, kMaxManifestBytes},
    {pb::Manifest::kPhasesFieldNumber, "phases", 65'536, kSmall},
    {pb::Manifest::kRequiredFilesFieldNumber, "required files", 1 << 20, kSmall},
    {pb::Manifest::kPacksFieldNumber, "packs", kMaxPacks, kSmall},
    {pb::Manifest::kPageFilesFieldNumber, "files of pages", 65'536, kMaxManifestBytes},
};

tl::unexpected<Error> NoProtobuf() {
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              "the body of the manifest is not a protobuf message");
}

// Removes a protobuf varint from the front of `data`. Returns false if there is none.
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

// Checks the top level of the message against kBounds, without allocating.
Status CheckBounds(std::string_view body) {
  if (body.size() > kMaxManifestBytes) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("the manifest is {} bytes long; at most {} are allowed", body.size(),
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
                    fmt::format("the manifest exceeds the limit on {}: at most {} of at most {} "
                                "bytes each are allowed",
                                bound.name, bound.max_count, bound.max_bytes));
      }
    }
  }
  return {};
}

Status ToId(const std::string& bytes, const char* what, Id128& id) {
  if (bytes.size() != Id128::kBytes) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("{} has {} bytes instead of 16", what, bytes.size()));
  }
  id = Id128::FromRaw(bytes.data());
  return {};
}

// The fields that a record and its message have in common, by name.
#define HOST(F)     \
  F(name)           \
  F(kernel_release) \
  F(machine) F(boot_id) F(boottime_ns) F(monotonic_ns) F(pid_namespace) F(page_bytes)
#define SOFTWARE(F) \
  F(stasis_version) F(criu_version) F(driver_version) F(driver_kind) F(gpu_topology)
#define JOB(F) F(id) F(root_pid) F(working_directory) F(uid) F(gid) F(leave_running) F(suspended)
#define PROCESS(F) \
  F(pid) F(ppid) F(start_ticks) F(comm) F(exe) F(device_bytes) F(namespace_pid) F(pgid) F(sid)
#define GPU(F) F(uuid) F(name) F(total_bytes) F(used_bytes)
#define EXTERNAL(F) F(key) F(kind) F(pid) F(fd) F(direction) F(path)
#define CRIU_OPTIONS(F) F(tcp) F(file_locks) F(link_remap) F(shell_job)
#define FILE_FIELDS(F) F(path) F(size_bytes)
#define PACK(F) F(size_bytes) F(unit_bytes) F(linked) F(used_units) F(used_bytes) F(checked_unix_ns)
#define RANGE(F) F(gpu) F(address) F(size_bytes) F(block_bytes) F(pid)
#define PHASE(F) F(name) F(start_seconds) F(seconds) F(bytes) F(parallel_group)
#define REQUIRED_FILE(F) F(path) F(size_bytes) F(build_id)

#define PUT(field) to->set_##field(from.field);
#define TAKE(field) to.field = static_cast<decltype(to.field)>(from.field());

// clang-format off
// A record that has no other fields.
#define PLAIN(Type, FIELDS)                      \
  void Put(const Type& from, pb::Type* to) {     \
    FIELDS(PUT)                                  \
  }                                              \
  Status Take(const pb::Type& from, Type& to) {  \
    FIELDS(TAKE)                                 \
    return {};                                   \
  }
// clang-format on

PLAIN(Host, HOST)
PLAIN(Software, SOFTWARE)
PLAIN(Gpu, GPU)
PLAIN(External, EXTERNAL)
PLAIN(Phase, PHASE)
PLAIN(RequiredFile, REQUIRED_FILE)

void Put(const Job& from, pb::Job* to) {
  JOB(PUT)
  to->mutable_argv()->Add(from.argv.begin(), from.argv.end());
}

Status Take(const pb::Job& from, Job& to) {
  JOB(TAKE)
  to.argv.assign(from.argv().begin(), from.argv().end());
  return {};
}

void Put(const Process& from, pb::Process* to) {
  PROCESS(PUT)
  to->set_recorded_state(static_cast<pb::Process::GpuState>(from.recorded_state));
  to->mutable_gpu_uuids()->Add(from.gpu_uuids.begin(), from.gpu_uuids.end());
  to->mutable_visible_gpu_uuids()->Add(from.visible_gpu_uuids.begin(),
                                       from.visible_gpu_uuids.end());
}

Status Take(const pb::Process& from, Process& to) {
  if (!pb::Process::GpuState_IsValid(from.recorded_state())) {
    return Fail(Code::kUnimplemented, Domain::kImage, from.recorded_state(),
                fmt::format("process {} was in a GPU state ({}) that this Stasis does not know",
                            from.pid(), static_cast<int>(from.recorded_state())),
                "Use a newer Stasis.");
  }
  PROCESS(TAKE)
  to.recorded_state = static_cast<GpuState>(from.recorded_state());
  to.gpu_uuids.assign(from.gpu_uuids().begin(), from.gpu_uuids().end());
  to.visible_gpu_uuids.assign(from.visible_gpu_uuids().begin(), from.visible_gpu_uuids().end());
  return {};
}

void Put(const CriuOptions& from, pb::CriuOptions* to) {
  CRIU_OPTIONS(PUT)
  to->mutable_others()->Add(from.others.begin(), from.others.end());
}

Status Take(const pb::CriuOptions& from, CriuOptions& to) {
  CRIU_OPTIONS(TAKE)
  to.others.assign(from.others().begin(), from.others().end());
  return {};
}

void Put(const File& from, pb::File* to) {
  FILE_FIELDS(PUT)
  for (const Id128& checksum : from.checksums) to->mutable_checksums()->append(checksum.View());
}

Status Take(const pb::File& from, File& to) {
  FILE_FIELDS(TAKE)
  const std::string& bytes = from.checksums();
  if (bytes.size() % Id128::kBytes != 0) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("a list of checksums has {} bytes, which is not a multiple of 16",
                            bytes.size()));
  }
  to.checksums.reserve(bytes.size() / Id128::kBytes);
  for (size_t at = 0; at < bytes.size(); at += Id128::kBytes) {
    to.checksums.push_back(Id128::FromRaw(&bytes[at]));
  }
  return {};
}

void Put(const UnitNaming& from, pb::UnitNaming* to) {
  to->set_function(from.function);
  to->set_key_id(std::string(from.key_id.View()));
}

Status Take(const pb::UnitNaming& from, UnitNaming& to) {
  to.function = from.function();
  return ToId(from.key_id(), "the naming key's id", to.key_id);
}

void Put(const Pack& from, pb::Pack* to) {
  PACK(PUT)
  to->set_id(std::string(from.id.View()));
  to->set_index_checksum(std::string(from.index_checksum.View()));
}

Status Take(const pb::Pack& from, Pack& to) {
  PACK(TAKE)
  STASIS_TRY(ToId(from.id(), "a pack's id", to.id));
  return ToId(from.index_checksum(), "a pack's checksum", to.index_checksum);
}

void Put(const std::vector<UnitRun>& from, pb::UnitRuns* to) {
  for (const UnitRun& run : from) {
    to->add_packs(run.is_zero() ? 0 : run.pack + 1);
    to->add_firsts(run.first);
    to->add_units(run.units);
  }
}

Status Take(const pb::UnitRuns& from, std::vector<UnitRun>& to) {
  const int count = from.packs_size();
  if (from.firsts_size() != count || from.units_size() != count) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                "the runs of a sequence have lists of different lengths");
  }
  to.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const uint32_t pack = from.packs(i);
    to.push_back({pack == 0 ? UnitRun::kZeros : pack - 1, from.firsts(i), from.units(i)});
  }
  return {};
}

void Put(const PageFile& from, pb::PageFile* to) {
  FILE_FIELDS(PUT)
  Put(from.runs, to->mutable_runs());
}

Status Take(const pb::PageFile& from, PageFile& to) {
  FILE_FIELDS(TAKE)
  return Take(from.runs(), to.runs);
}

void Put(const DeviceRange& from, pb::DeviceRange* to) {
  RANGE(PUT)
  Put(from.runs, to->mutable_runs());
}

Status Take(const pb::DeviceRange& from, DeviceRange& to) {
  RANGE(TAKE)
  return Take(from.runs(), to.runs);
}

template <class Record, class Repeated>
void PutAll(const std::vector<Record>& from, Repeated* to) {
  for (const Record& item : from) Put(item, to->Add());
}

template <class Record, class Repeated>
Status TakeAll(const Repeated& from, std::vector<Record>& to) {
  to.reserve(static_cast<size_t>(from.size()));
  for (const auto& item : from) STASIS_TRY(Take(item, to.emplace_back()));
  return {};
}

}  // namespace

Result<std::string> EncodeManifest(const Manifest& manifest) {
  STASIS_TRY(CheckManifest(manifest));
  pb::Manifest message;
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
  if (manifest.unit_naming) Put(*manifest.unit_naming, message.mutable_unit_naming());
  PutAll(manifest.ranges, message.mutable_ranges());
  PutAll(manifest.phases, message.mutable_phases());
  PutAll(manifest.required_files, message.mutable_required_files());
  PutAll(manifest.packs, message.mutable_packs());
  PutAll(manifest.page_files, message.mutable_page_files());
  message.set_ranges_elsewhere(manifest.ranges_elsewhere);

  std::string body = message.SerializeAsString();
  // Decode the result, because an image with too long a text or list could not be opened.
  if (auto again = DecodeManifest(body); !again) {
    return Fail(std::move(again.error()).WithContext("the new manifest would be unreadable"));
  }
  return body;
}

Result<Manifest> DecodeManifest(std::string_view body) {
  STASIS_TRY(CheckBounds(body));
  pb::Manifest message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size()))) return NoProtobuf();

  Manifest manifest;
  STASIS_TRY(ToId(message.image_id(), "the image's id", manifest.image_id));
  manifest.created_unix_ns = message.created_unix_ns();
  STASIS_TRY(Take(message.host(), manifest.host));
  STASIS_TRY(Take(message.software(), manifest.software));
  STASIS_TRY(Take(message.job(), manifest.job));
  STASIS_TRY(TakeAll(message.processes(), manifest.processes));
  STASIS_TRY(TakeAll(message.gpus(), manifest.gpus));
  STASIS_TRY(TakeAll(message.externals(), manifest.externals));
  STASIS_TRY(Take(message.criu(), manifest.criu));
  manifest.chunk_bytes = message.chunk_bytes();
  STASIS_TRY(TakeAll(message.files(), manifest.files));
  if (message.has_unit_naming()) {
    STASIS_TRY(Take(message.unit_naming(), manifest.unit_naming.emplace()));
  }
  STASIS_TRY(TakeAll(message.ranges(), manifest.ranges));
  STASIS_TRY(TakeAll(message.phases(), manifest.phases));
  STASIS_TRY(TakeAll(message.required_files(), manifest.required_files));
  STASIS_TRY(TakeAll(message.packs(), manifest.packs));
  STASIS_TRY(TakeAll(message.page_files(), manifest.page_files));
  manifest.ranges_elsewhere = message.ranges_elsewhere();
  STASIS_TRY(CheckManifest(manifest));
  return manifest;
}

}  // namespace stasis::store
