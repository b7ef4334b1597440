#include "store/image_report.h"

#include <time.h>

#include <algorithm>

#include "base/hex.h"

namespace stasis::store {

namespace {

using nlohmann::json;

constexpr const char* kStateNames[] = {"none", "running", "locked", "checkpointed", "failed"};

constexpr const char* kOrigins[] = {"own", "changed", "other", "unknown"};
static_assert(std::size(kOrigins) == static_cast<size_t>(Origin::kUnknown) + 1);

// Replaces bytes that are not UTF-8: names of programs are bytes, and JSON must be UTF-8.
json Text(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

json Texts(const std::vector<std::string>& texts) {
  json array = json::array();
  for (const std::string& text : texts) array.push_back(Text(text));
  return array;
}

json OriginJson(const ImageReader& image, const OriginKey* key) {
  const auto id = image.origin_key_id();
  return {{"by", OriginName(image.OriginBy(key))}, {"key", id ? id->Hex() : ""}};
}

uint64_t DeviceZeroBytes(const Manifest& manifest) {
  uint64_t total = 0;
  for (const DeviceRange& range : manifest.ranges) {
    total += ZeroBytes(range.runs, range.block_bytes, range.size_bytes);
  }
  return total;
}

json FilesJson(const Manifest& manifest) {
  json files = json::array();
  for (const File& file : manifest.files) {
    json checksums = json::array();
    for (const Id128& checksum : file.checksums) checksums.push_back(checksum.Hex());
    files.push_back({{"path", Text(file.path)},
                     {"size_bytes", file.size_bytes},
                     {"xxh3_128", std::move(checksums)}});
  }
  return files;
}

json ProcessesJson(const Manifest& manifest) {
  json processes = json::array();
  for (const Process& p : manifest.processes) {
    processes.push_back({{"pid", p.pid},
                         {"ppid", p.ppid},
                         {"comm", Text(p.comm)},
                         {"exe", Text(p.exe)},
                         {"gpu_state", kStateNames[static_cast<size_t>(p.recorded_state)]},
                         {"gpus", Texts(p.gpu_uuids)},
                         {"device_bytes", p.device_bytes}});
  }
  return processes;
}

json GpusJson(const Manifest& manifest) {
  json gpus = json::array();
  for (const Gpu& gpu : manifest.gpus) {
    gpus.push_back({{"uuid", Text(gpu.uuid)},
                    {"name", Text(gpu.name)},
                    {"total_bytes", gpu.total_bytes},
                    {"used_bytes", gpu.used_bytes}});
  }
  return gpus;
}

json RangesJson(const Manifest& manifest) {
  json ranges = json::array();
  for (const DeviceRange& range : manifest.ranges) {
    uint64_t blocks = 0, zero = 0;
    for (const UnitRun& run : range.runs) {
      blocks += run.units;
      if (run.is_zero()) zero += run.units;
    }
    ranges.push_back({{"gpu", range.gpu},
                      {"pid", range.pid},
                      {"address", range.address},
                      {"size_bytes", range.size_bytes},
                      {"blocks", blocks},
                      {"zero_blocks", zero}});
  }
  return ranges;
}

json PacksJson(const Manifest& manifest) {
  json packs = json::array();
  for (const Pack& pack : manifest.packs) {
    packs.push_back({{"path", pack.path()},
                     {"size_bytes", pack.size_bytes},
                     {"linked", pack.linked},
                     {"unit_bytes", pack.unit_bytes},
                     {"used_units", pack.used_units},
                     {"used_bytes", pack.used_bytes},
                     {"checked", Utc(pack.checked_unix_ns)}});
  }
  return packs;
}

json PhasesJson(const Manifest& manifest) {
  json phases = json::array();
  for (const Phase& phase : manifest.phases) {
    phases.push_back({{"name", Text(phase.name)},
                      {"start_s", phase.start_seconds},
                      {"seconds", phase.seconds},
                      {"bytes", phase.bytes},
                      {"parallel_group", Text(phase.parallel_group)}});
  }
  return phases;
}

json ExternalsJson(const Manifest& manifest) {
  json externals = json::array();
  for (const External& e : manifest.externals) {
    externals.push_back({{"key", Text(e.key)},
                         {"kind", Text(e.kind)},
                         {"pid", e.pid},
                         {"fd", e.fd},
                         {"direction", Text(e.direction)},
                         {"path", Text(e.path)}});
  }
  return externals;
}

}  // namespace

std::string Utc(int64_t unix_ns) {
  time_t seconds = unix_ns / 1'000'000'000;
  tm parts{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "-";
  char text[64];
  return ::strftime(text, sizeof text, "%FT%TZ", &parts) > 0 ? text : "-";
}

uint64_t DeviceBytes(const Manifest& manifest) {
  uint64_t total = 0;
  for (const Gpu& gpu : manifest.gpus) total += gpu.used_bytes;
  return total;
}

const char* OriginName(Origin origin) { return kOrigins[static_cast<size_t>(origin)]; }

json InspectJson(const ImageReader& image, const OriginKey* key) {
  const Manifest& m = image.manifest();
  json criu = {{"tcp", Text(m.criu.tcp)},
               {"file_locks", m.criu.file_locks},
               {"link_remap", m.criu.link_remap},
               {"shell_job", m.criu.shell_job},
               {"others", Texts(m.criu.others)}};
  json required = json::array();
  for (const RequiredFile& file : m.required_files) {
    required.push_back({{"path", Text(file.path)},
                        {"size_bytes", file.size_bytes},
                        {"build_id", HexOfBytes(file.build_id)}});
  }
  return {{"path", Text(image.path())},
          {"id", m.image_id.Hex()},
          {"format", kFormatVersion},
          {"origin", OriginJson(image, key)},
          {"created", Utc(m.created_unix_ns)},
          {"created_unix_ns", m.created_unix_ns},
          {"host",
           {{"name", Text(m.host.name)},
            {"kernel", Text(m.host.kernel_release)},
            {"machine", Text(m.host.machine)},
            {"boot_id", Text(m.host.boot_id)},
            {"boottime_ns", m.host.boottime_ns},
            {"monotonic_ns", m.host.monotonic_ns}}},
          {"software",
           {{"stasis", Text(m.software.stasis_version)},
            {"criu", Text(m.software.criu_version)},
            {"driver", Text(m.software.driver_version)},
            {"driver_kind", Text(m.software.driver_kind)}}},
          {"job",
           {{"id", Text(m.job.id)},
            {"command", Texts(m.job.argv)},
            {"root_pid", m.job.root_pid},
            {"working_directory", Text(m.job.working_directory)},
            {"uid", m.job.uid},
            {"gid", m.job.gid},
            {"leave_running", m.job.leave_running},
            {"suspended", m.job.suspended}}},
          {"processes", ProcessesJson(m)},
          {"gpus", GpusJson(m)},
          {"externals", ExternalsJson(m)},
          {"criu", std::move(criu)},
          {"size_bytes", m.TotalBytes()},
          {"added_bytes", m.AddedBytes()},
          {"zero_bytes", DeviceZeroBytes(m)},
          {"device_bytes", DeviceBytes(m)},
          {"packs", PacksJson(m)},
          {"chunk_bytes", m.chunk_bytes},
          {"files", FilesJson(m)},
          {"ranges", RangesJson(m)},
          {"phases", PhasesJson(m)},
          {"required_files", std::move(required)}};
}

}  // namespace stasis::store
