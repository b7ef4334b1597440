#include "store/manifest_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

namespace stasis::store {

namespace {

tl::unexpected<Error> Broken(std::string message) {
  return Fail(Code::kInvalidArgument, Domain::kImage, 0, std::move(message));
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Returns the length in bytes of the character at the beginning of `text`, or 0 if it is not valid
// UTF-8 or controls a terminal (C0, DEL, C1).
size_t PrintableLength(std::string_view text) {
  auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return IsControl(text.front()) ? 0 : 1;
  size_t length = first >= 0xf5 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  auto second = static_cast<unsigned char>(text[1]);
  bool is_c1 = first == 0xc2 && second < 0xa0;
  bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  bool no_character = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return is_c1 || too_long || no_character ? 0 : length;
}

Status CheckFiles(const Manifest& manifest) {
  std::unordered_set<std::string_view> seen;
  for (const File& file : manifest.files) {
    STASIS_TRY(CheckFilePath(file.path));
    if (file.path.starts_with(std::string(kPacksFolder) + "/")) {
      return Broken(file.path + " is listed as a file, but only packs may be in that folder");
    }
    if (!seen.insert(file.path).second) return Broken(file.path + " is listed twice");
    if (file.size_bytes > kMaxFileBytes) {
      return Broken(fmt::format("{} claims {} bytes; at most {} are allowed", file.path,
                                file.size_bytes, kMaxFileBytes));
    }
    uint64_t chunks = (file.size_bytes + manifest.chunk_bytes - 1) / manifest.chunk_bytes;
    if (file.checksums.size() != chunks) {
      return Broken(fmt::format("{} has {} bytes and so needs {} checksums, but has {}", file.path,
                                file.size_bytes, chunks, file.checksums.size()));
    }
  }
  return {};
}

Status CheckPacks(const Manifest& manifest) {
  std::unordered_set<Id128, Id128Hash> seen;
  for (const Pack& pack : manifest.packs) {
    if (pack.id.IsZero()) return Broken("a pack has no id");
    if (!seen.insert(pack.id).second) return Broken(pack.path() + " is listed twice");
    if (pack.unit_bytes != kPageBytes && pack.unit_bytes != kBlockBytes) {
      return Broken(fmt::format("{} claims units of {} bytes", pack.path(), pack.unit_bytes));
    }
    if (pack.size_bytes > kMaxFileBytes || pack.used_bytes > pack.size_bytes ||
        pack.used_units > kMaxPackUnits) {
      return Broken(fmt::format("{} claims {} bytes, {} of them in {} units", pack.path(),
                                pack.size_bytes, pack.used_bytes, pack.used_units));
    }
  }
  return {};
}

// A sequence of units of `unit_bytes`; the last one may be shorter. It may refer only to packs with
// units of `pack_unit_bytes`.
struct UnitSequence {
  std::string what;
  uint64_t size_bytes;
  uint32_t unit_bytes;
  uint32_t pack_unit_bytes;
  const std::vector<UnitRun>* runs;
};

// Counts the units in packs and marks the packs that are used.
Status CheckRuns(const Manifest& manifest, const UnitSequence& sequence, std::vector<bool>& used,
                 uint64_t& units_in_packs) {
  const uint64_t wanted = sequence.size_bytes / sequence.unit_bytes +
                          (sequence.size_bytes % sequence.unit_bytes != 0 ? 1 : 0);
  uint64_t units = 0;
  for (const UnitRun& run : *sequence.runs) {
    units += run.units;
    const bool in_place =
        run.is_zero() ? run.first == 0
                      : run.pack < used.size() &&
                            manifest.packs[run.pack].unit_bytes == sequence.pack_unit_bytes &&
                            uint64_t{run.first} + run.units <= kMaxPackUnits;
    if (run.units == 0 || !in_place || units > wanted) {
      return Broken(fmt::format("{} has an invalid run of {} units from unit {} of pack {} of {}",
                                sequence.what, run.units, run.first, run.pack, used.size()));
    }
    if (run.is_zero()) continue;
    used[run.pack] = true;
    units_in_packs += run.units;
  }
  if (units == wanted && units_in_packs <= kMaxImageUnits) return {};
  return Broken(fmt::format("{} has {} bytes and so needs {} units, but has {}", sequence.what,
                            sequence.size_bytes, wanted, units));
}

Status CheckRange(const Manifest& manifest, const DeviceRange& range, const std::string& what) {
  if (range.gpu >= manifest.gpus.size()) {
    return Broken(fmt::format("{} is on GPU {}, but the image has {} GPUs", what, range.gpu,
                              manifest.gpus.size()));
  }
  if (range.block_bytes == 0 || range.block_bytes > kBlockBytes) {
    return Broken(fmt::format("{} has blocks of {} bytes; 1 to {} are allowed", what,
                              range.block_bytes, kBlockBytes));
  }
  if (range.size_bytes == 0 || range.address + range.size_bytes < range.address) {
    return Broken(fmt::format("{} has a size of {} bytes", what, range.size_bytes));
  }
  return {};
}

// Checks device ranges and page files, and that each pack is needed by one of them.
Status CheckUnits(const Manifest& manifest) {
  std::vector<bool> used(manifest.packs.size());
  uint64_t units_in_packs = 0;
  for (const DeviceRange& range : manifest.ranges) {
    std::string what = fmt::format("device range {:#x}", range.address);
    STASIS_TRY(CheckRange(manifest, range, what));
    STASIS_TRY(CheckRuns(manifest,
                         {what, range.size_bytes, range.block_bytes, kBlockBytes, &range.runs},
                         used, units_in_packs));
  }
  std::unordered_set<std::string_view> seen;
  for (const File& file : manifest.files) seen.insert(file.path);
  for (const PageFile& file : manifest.page_files) {
    STASIS_TRY(CheckFilePath(file.path));
    if (!file.path.starts_with("cpu/")) return Broken(file.path + " cannot be stored as pages");
    if (!seen.insert(file.path).second) return Broken(file.path + " is listed twice");
    if (file.size_bytes == 0 || file.size_bytes > kMaxFileBytes ||
        file.size_bytes % kPageBytes != 0) {
      return Broken(fmt::format("{} claims {} bytes", file.path, file.size_bytes));
    }
    STASIS_TRY(CheckRuns(manifest, {file.path, file.size_bytes, kPageBytes, kPageBytes, &file.runs},
                         used, units_in_packs));
  }
  if (units_in_packs > 0 && !manifest.unit_naming) {
    return Broken("the manifest refers to units in packs, but does not say how they are named");
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) return Broken(manifest.packs[i].path() + " is listed, but nothing refers to it");
  }
  return {};
}

Status CheckProcesses(const Manifest& manifest) {
  std::unordered_set<pid_t> seen, restored;
  for (const Process& process : manifest.processes) {
    if (process.pid <= 0) {
      return Broken(fmt::format("a process has the invalid id {}", process.pid));
    }
    if (!seen.insert(process.pid).second) {
      return Broken(fmt::format("process {} is listed twice", process.pid));
    }
    if (process.namespace_pid < 0) {
      return Broken(fmt::format("process {} has the invalid id {} in its own namespace",
                                process.pid, process.namespace_pid));
    }
    if (!restored.insert(process.restored_pid()).second) {
      return Broken(fmt::format("two processes would have the id {} after a restore",
                                process.restored_pid()));
    }
  }
  return {};
}

Status CheckPhases(const Manifest& manifest) {
  for (const Phase& phase : manifest.phases) {
    if (!std::isfinite(phase.seconds) || !std::isfinite(phase.start_seconds) || phase.seconds < 0 ||
        phase.start_seconds < 0) {
      return Broken("phase " + Printable(phase.name) + " has an invalid time");
    }
  }
  return {};
}

}  // namespace

bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
         name.find('/') == name.npos && std::none_of(name.begin(), name.end(), IsControl);
}

Status CheckFilePath(std::string_view path) {
  size_t slash = path.find('/');
  if (slash != path.npos && IsPlainName(path.substr(slash + 1))) {
    for (std::string_view folder : kFolders) {
      if (path.substr(0, slash) == folder) return {};
    }
  }
  return Broken("\"" + Printable(path) + "\" is not a path inside an image");
}

uint64_t FeaturesOf(const Manifest& manifest) {
  const bool has_agent = std::any_of(
      manifest.files.begin(), manifest.files.end(),
      [](const File& file) { return file.path.starts_with(std::string(kAgentFolder) + "/"); });
  return (has_agent ? kFeatureAgent : 0) | (manifest.ranges_elsewhere ? kFeatureElsewhere : 0);
}

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string shown;
  while (!text.empty()) {
    size_t length = PrintableLength(text);
    if (shown.size() + std::max<size_t>(length, 1) > max_bytes) return shown + "...";
    shown += length > 0 ? text.substr(0, length) : "?";
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

Status CheckManifest(const Manifest& manifest) {
  if (manifest.image_id.IsZero()) return Broken("the image has no id");
  if (!std::has_single_bit(manifest.chunk_bytes) || manifest.chunk_bytes < kMinChunkBytes ||
      manifest.chunk_bytes > kMaxChunkBytes) {
    return Broken(
        fmt::format("checksums are computed over chunks of {} bytes; a power of two from {} to {} "
                    "is allowed",
                    manifest.chunk_bytes, kMinChunkBytes, kMaxChunkBytes));
  }
  for (auto check : {CheckFiles, CheckPacks, CheckUnits, CheckProcesses, CheckPhases}) {
    STASIS_TRY(check(manifest));
  }
  return {};
}

}  // namespace stasis::store
