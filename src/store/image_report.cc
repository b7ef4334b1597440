#include "store/image_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/build_id.h"
#include "store/manifest_check.h"
#include "store/report_text.h"

namespace stasis::store {

namespace {

using nlohmann::json;

constexpr const char* kStateNames[] = {"none", "running", "locked", "checkpointed", "failed"};

struct OriginText {
  const char* json;
  const char* text;
};
constexpr OriginText kOrigins[] = {
    {"own", "this installation"},
    {"changed", "this installation, but the manifest was changed since"},
    {"other", "another installation (a restore needs --trust-image)"},
    {"unknown", "unknown: no MAC (a restore needs --trust-image)"},
};
static_assert(std::size(kOrigins) == static_cast<size_t>(Origin::kUnknown) + 1);

const OriginText& OriginOf(const ImageReader& image, const OriginKey* key) {
  return kOrigins[static_cast<size_t>(image.OriginBy(key))];
}

json OriginJson(const ImageReader& image, const OriginKey* key) {
  const auto id = image.origin_key_id();
  return {{"by", OriginOf(image, key).json}, {"key", id ? id->Hex() : ""}};
}

uint64_t FileBytes(const Manifest& manifest) {
  uint64_t total = 0;
  for (const File& file : manifest.files) total += file.size_bytes;
  return total;
}

uint64_t DeviceZeroBytes(const Manifest& manifest) {
  uint64_t total = 0;
  for (const DeviceRange& range : manifest.ranges) {
    total += ZeroBytes(range.runs, range.block_bytes, range.size_bytes);
  }
  return total;
}

std::string Line(const char* label, const std::string& text) {
  return fmt::format("{:<11}{}\n", label, text);
}

std::string Dash(const std::string& text) { return text.empty() ? "-" : Printable(text); }

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

std::string InspectText(const ImageReader& image, const OriginKey* key) {
  const Manifest& m = image.manifest();
  std::string text;
  text += Line("image", image.path());
  text += Line("id", m.image_id.Hex());
  text += Line("format", std::to_string(kFormatVersion));
  text += Line("created",
               fmt::format("{} on {}, Linux {} {}", Utc(m.created_unix_ns), Dash(m.host.name),
                           Dash(m.host.kernel_release), Dash(m.host.machine)));
  text += Line("origin", OriginOf(image, key).text);
  text += Line("by", fmt::format("Stasis {}, CRIU {}", Dash(m.software.stasis_version),
                                 Dash(m.software.criu_version)));
  if (!m.software.driver_kind.empty()) {
    text += Line("driver", fmt::format("{} {}", Printable(m.software.driver_kind),
                                       Dash(m.software.driver_version)));
  }
  text +=
      Line("job", fmt::format("{}{}{}", JobName(m.job), m.job.leave_running ? ", left running" : "",
                              m.job.suspended ? ", suspended" : ""));
  text += Line("command", CommandLine(m.job));
  text += Line("folder", Dash(m.job.working_directory));
  for (const Process& p : m.processes) {
    std::string gpu = p.is_cuda() ? fmt::format(", GPU memory {}, was {}", Bytes(p.device_bytes),
                                                kStateNames[static_cast<size_t>(p.recorded_state)])
                                  : "";
    text += Line("process", fmt::format("{} {}{}", p.pid, Dash(p.comm), gpu));
  }
  for (const Gpu& gpu : m.gpus) {
    text += Line("gpu", fmt::format("{} {}: {} of {}", Dash(gpu.name), Dash(gpu.uuid),
                                    Bytes(gpu.used_bytes), Bytes(gpu.total_bytes)));
  }
  for (const External& e : m.externals) {
    text += Line("external",
                 fmt::format("{} ({}, fd {} of {})", Dash(e.key), Dash(e.kind), e.fd, e.pid));
  }
  text += Line("files", fmt::format("{}, {}", m.files.size(), Bytes(FileBytes(m))));
  if (!m.packs.empty()) {
    uint64_t used = m.TotalBytes() - FileBytes(m);
    uint64_t shared = m.TotalBytes() - m.AddedBytes();
    text += Line("packs",
                 fmt::format("{}, {} of units: {} written for this image, {} as in "
                             "earlier ones",
                             m.packs.size(), Bytes(used), Bytes(used - shared), Bytes(shared)));
  }
  if (!m.ranges.empty()) {
    uint64_t bytes = 0;
    for (const DeviceRange& range : m.ranges) bytes += range.size_bytes;
    text += Line("ranges", fmt::format("{}, {} of device memory, {} of it zero", m.ranges.size(),
                                       Bytes(bytes), Bytes(DeviceZeroBytes(m))));
  }
  for (const Phase& phase : m.phases) {
    std::string bytes = phase.bytes > 0 ? ", " + Bytes(phase.bytes) : "";
    text +=
        Line("phase", fmt::format("{:<20} {:>9.3f} s{}", Dash(phase.name), phase.seconds, bytes));
  }
  return text;
}

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

std::string VerifyText(const ImageReader& image, const VerifyReport& report, const OriginKey* key) {
  std::string text;
  for (const Finding& finding : report.findings) {
    text += fmt::format("{} {}\n", Printable(finding.path, kMaxPathBytes),
                        Printable(finding.message, 500));
  }
  size_t found = report.findings.size();
  std::string verdict = found == 0   ? "whole"
                        : found == 1 ? "damaged, 1 finding"
                                     : fmt::format("damaged, {} findings", found);
  double rate = report.seconds > 0 ? static_cast<double>(report.bytes) / report.seconds : 0;
  text += fmt::format("{}: {}, {} files, {} read in {:.2f} s ({}/s)\n", image.path(), verdict,
                      report.files, Bytes(report.bytes), report.seconds,
                      Bytes(static_cast<uint64_t>(rate)));
  text += fmt::format("origin: {}\n", OriginOf(image, key).text);
  return text;
}

json VerifyJson(const ImageReader& image, const VerifyReport& report, const OriginKey* key) {
  json findings = json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back({{"path", Text(finding.path)}, {"message", Text(finding.message)}});
  }
  return {{"path", Text(image.path())},
          {"id", image.manifest().image_id.Hex()},
          {"origin", OriginJson(image, key)},
          {"ok", report.ok()},
          {"findings", std::move(findings)},
          {"files", report.files},
          {"bytes", report.bytes},
          {"seconds", report.seconds}};
}

}  // namespace stasis::store
