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

// Replaces bytes that are not UTF-8, because names of programs are arbitrary bytes and JSON must be
// UTF-8.
json Text(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

// Returns describe(item) for each item.
template <class Item, class Describe>
json ListOf(const std::vector<Item>& items, const Describe& describe) {
  json list = json::array();
  for (const Item& item : items) list.push_back(describe(item));
  return list;
}

json Texts(const std::vector<std::string>& texts) { return ListOf(texts, Text); }

json OriginJson(const ImageReader& image, const OriginKey* key) {
  const auto id = image.origin_key_id();
  return {
      {"by", OriginName(image.OriginBy(key))}, {"key", id ? id->Hex() : ""}, {"repository", ""}};
}

uint64_t DeviceZeroBytes(const Manifest& manifest) {
  uint64_t total = 0;
  for (const DeviceRange& range : manifest.ranges) {
    total += ZeroBytes(range.runs, range.block_bytes, range.size_bytes);
  }
  return total;
}

json FilesJson(const Manifest& manifest) {
  return ListOf(manifest.files, [](const File& file) -> json {
    return {{"path", Text(file.path)},
            {"size_bytes", file.size_bytes},
            {"xxh3_128", ListOf(file.checksums, [](const Id128& sum) { return sum.Hex(); })}};
  });
}

json ProcessesJson(const Manifest& manifest) {
  return ListOf(manifest.processes, [](const Process& p) -> json {
    return {{"pid", p.pid},
            {"ppid", p.ppid},
            {"comm", Text(p.comm)},
            {"exe", Text(p.exe)},
            {"gpu_state", kStateNames[static_cast<size_t>(p.recorded_state)]},
            {"gpus", Texts(p.gpu_uuids)},
            {"device_bytes", p.device_bytes}};
  });
}

json GpusJson(const Manifest& manifest) {
  return ListOf(manifest.gpus, [](const Gpu& gpu) -> json {
    return {{"uuid", Text(gpu.uuid)},
            {"name", Text(gpu.name)},
            {"total_bytes", gpu.total_bytes},
            {"used_bytes", gpu.used_bytes}};
  });
}

json RangesJson(const Manifest& manifest) {
  return ListOf(manifest.ranges, [](const DeviceRange& range) -> json {
    uint64_t blocks = 0, zero = 0;
    for (const UnitRun& run : range.runs) {
      blocks += run.units;
      if (run.is_zero()) zero += run.units;
    }
    return {{"gpu", range.gpu},         {"pid", range.pid},
            {"address", range.address}, {"size_bytes", range.size_bytes},
            {"blocks", blocks},         {"zero_blocks", zero}};
  });
}

json PacksJson(const Manifest& manifest) {
  return ListOf(manifest.packs, [](const Pack& pack) -> json {
    return {{"path", pack.path()},
            {"size_bytes", pack.size_bytes},
            {"linked", pack.linked},
            {"unit_bytes", pack.unit_bytes},
            {"used_units", pack.used_units},
            {"used_bytes", pack.used_bytes},
            {"checked", Utc(pack.checked_unix_ns)}};
  });
}

json PhasesJson(const Manifest& manifest) {
  return ListOf(manifest.phases, [](const Phase& phase) -> json {
    return {{"name", Text(phase.name)},
            {"start_s", phase.start_seconds},
            {"seconds", phase.seconds},
            {"bytes", phase.bytes},
            {"parallel_group", Text(phase.parallel_group)}};
  });
}

json ExternalsJson(const Manifest& manifest) {
  return ListOf(manifest.externals, [](const External& e) -> json {
    return {{"key", Text(e.key)}, {"kind", Text(e.kind)},           {"pid", e.pid},
            {"fd", e.fd},         {"direction", Text(e.direction)}, {"path", Text(e.path)}};
  });
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
  json document = InspectJson(image.manifest(), image.path());
  document["origin"] = OriginJson(image, key);
  return document;
}

json InspectJson(const Manifest& m, const std::string& path) {
  json criu = {{"tcp", Text(m.criu.tcp)},
               {"file_locks", m.criu.file_locks},
               {"link_remap", m.criu.link_remap},
               {"shell_job", m.criu.shell_job},
               {"others", Texts(m.criu.others)}};
  json required = ListOf(m.required_files, [](const RequiredFile& file) -> json {
    return {{"path", Text(file.path)},
            {"size_bytes", file.size_bytes},
            {"build_id", HexOfBytes(file.build_id)}};
  });
  return {{"path", Text(path)},
          {"id", m.image_id.Hex()},
          {"format", kFormatVersion},
          {"origin", {{"by", OriginName(Origin::kUnknown)}, {"key", ""}, {"repository", ""}}},
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
