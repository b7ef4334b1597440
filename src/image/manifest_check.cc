#include "image/manifest_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

namespace stasis::image {

namespace {

tl::unexpected<Error> Broken(std::string message) {
  return Fail(Code::kInvalidArgument, Domain::kImage, 0, std::move(message));
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Bytes of the character that `text` begins with; 0 when it is none, or one that steers a terminal
// (C0, DEL, C1).
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
    const std::string folder = file.path.substr(0, file.path.find('/'));
    if ((manifest.format > 1 && folder == "gpu") || folder == kPagesFolder) {
      return Broken(file.path + " is listed as a file; in this format it can only be a pack");
    }
    if (!seen.insert(file.path).second) return Broken(file.path + " is listed twice");
    if (file.size_bytes > kMaxFileBytes) {
      return Broken(fmt::format("{} claims {} bytes; the most is {}", file.path, file.size_bytes,
                                kMaxFileBytes));
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
  if (manifest.format == 1 && !manifest.packs.empty()) return Broken("format 1 has no packs");
  std::unordered_set<Id128, Id128Hash> seen;
  for (const Pack& pack : manifest.packs) {
    if (pack.id.IsZero()) return Broken("a pack has no id");
    if (!seen.insert(pack.id).second) return Broken(pack.path() + " is listed twice");
    if (pack.holds_pages && manifest.format < 3) {
      return Broken(fmt::format("format {} has no packs of pages", manifest.format));
    }
    if (pack.size_bytes > kMaxFileBytes || pack.used_bytes > pack.size_bytes ||
        pack.used_blocks > (pack.holds_pages ? kMaxPackPages : kMaxPackBlocks)) {
      return Broken(fmt::format("{} claims {} bytes, {} of them in {} blocks", pack.path(),
                                pack.size_bytes, pack.used_bytes, pack.used_blocks));
    }
  }
  return {};
}

// Which pack each block is in.
Status CheckBlockPacks(const Manifest& manifest, std::vector<bool>& used) {
  for (const DeviceRange& range : manifest.ranges) {
    std::string what = fmt::format("device range {:#x}", range.address);
    if (range.packs.size() != (manifest.format == 1 ? 0 : range.blocks.size())) {
      return Broken(fmt::format("{} has {} blocks and says of {} in which pack they are", what,
                                range.blocks.size(), range.packs.size()));
    }
    for (size_t i = 0; i < range.packs.size(); ++i) {
      if (range.blocks[i].IsZero()) {
        if (range.packs[i] != 0) return Broken(what + " has a block of zeros in a pack");
      } else if (range.packs[i] >= used.size()) {
        return Broken(
            fmt::format("{} has a block in pack {} of {}", what, range.packs[i], used.size()));
      } else if (manifest.packs[range.packs[i]].holds_pages) {
        return Broken(what + " has a block in a pack of pages");
      } else {
        used[range.packs[i]] = true;
      }
    }
  }
  return {};
}

Status CheckRuns(const Manifest& manifest, const PageFile& file, std::vector<bool>& used,
                 uint64_t& pages_in_packs) {
  uint64_t pages = 0;
  for (const PageRun& run : file.runs) {
    pages += run.pages;
    const bool in_place = run.is_zero()
                              ? run.first == 0
                              : run.pack < used.size() && manifest.packs[run.pack].holds_pages &&
                                    uint64_t{run.first} + run.pages <= kMaxPackPages;
    if (run.pages == 0 || !in_place || pages > kMaxFileBytes / kPageBytes) {
      return Broken(fmt::format("{} has {} pages from page {} of pack {} of {}", file.path,
                                run.pages, run.first, run.pack, used.size()));
    }
    if (run.is_zero()) continue;
    used[run.pack] = true;
    pages_in_packs += run.pages;
  }
  if (pages * kPageBytes == file.size_bytes && pages_in_packs <= kMaxImagePages) return {};
  return Broken(fmt::format("{} has {} bytes, and {} pages", file.path, file.size_bytes, pages));
}

// Files that are made of pages; they are none of those that lie in the image.
Status CheckPageFiles(const Manifest& manifest, std::vector<bool>& used) {
  if (manifest.format < 3 && !manifest.page_files.empty()) {
    return Broken(fmt::format("format {} has no files of pages", manifest.format));
  }
  std::unordered_set<std::string_view> seen;
  for (const File& file : manifest.files) seen.insert(file.path);
  uint64_t pages_in_packs = 0;
  for (const PageFile& file : manifest.page_files) {
    STASIS_TRY(CheckFilePath(file.path));
    if (!file.path.starts_with("cpu/")) return Broken(file.path + " cannot be made of pages");
    if (!seen.insert(file.path).second) return Broken(file.path + " is listed twice");
    if (file.size_bytes == 0 || file.size_bytes > kMaxFileBytes) {
      return Broken(fmt::format("{} claims {} bytes", file.path, file.size_bytes));
    }
    STASIS_TRY(CheckRuns(manifest, file, used, pages_in_packs));
  }
  if (pages_in_packs > 0 && !manifest.block_naming) {
    return Broken("there are packs of pages, but nothing says how those are named");
  }
  return {};
}

// Every pack is there for something.
Status CheckPackUse(const Manifest& manifest) {
  std::vector<bool> used(manifest.packs.size());
  STASIS_TRY(CheckBlockPacks(manifest, used));
  STASIS_TRY(CheckPageFiles(manifest, used));
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) return Broken(manifest.packs[i].path() + " is listed, and nothing is in it");
  }
  return {};
}

Status CheckRanges(const Manifest& manifest) {
  for (const DeviceRange& range : manifest.ranges) {
    std::string what = fmt::format("device range {:#x}", range.address);
    if (range.gpu >= manifest.gpus.size()) {
      return Broken(fmt::format("{} is on GPU {} of {}", what, range.gpu, manifest.gpus.size()));
    }
    if (range.block_bytes == 0 || range.block_bytes > kBlockBytes) {
      return Broken(fmt::format("{} has blocks of {} bytes; 1 to {} are allowed", what,
                                range.block_bytes, kBlockBytes));
    }
    if (range.size_bytes == 0 || range.address + range.size_bytes < range.address) {
      return Broken(fmt::format("{} has a size of {} bytes", what, range.size_bytes));
    }
    uint64_t blocks = range.size_bytes / range.block_bytes;
    if (range.size_bytes % range.block_bytes != 0) ++blocks;
    if (range.blocks.size() != blocks) {
      return Broken(fmt::format("{} has {} bytes and so needs {} blocks, but has {}", what,
                                range.size_bytes, blocks, range.blocks.size()));
    }
    if (!manifest.block_naming) return Broken(what + " has blocks, but nothing says how named");
  }
  return {};
}

Status CheckProcesses(const Manifest& manifest) {
  std::unordered_set<pid_t> seen, restored;
  for (const Process& process : manifest.processes) {
    if (process.pid <= 0) return Broken(fmt::format("a process has the id {}", process.pid));
    if (!seen.insert(process.pid).second) {
      return Broken(fmt::format("process {} is listed twice", process.pid));
    }
    if (process.namespace_pid < 0) {
      return Broken(fmt::format("process {} calls itself {}", process.pid, process.namespace_pid));
    }
    if (!restored.insert(process.restored_pid()).second) {
      return Broken(fmt::format("two processes call themselves {}", process.restored_pid()));
    }
  }
  return {};
}

Status CheckPhases(const Manifest& manifest) {
  for (const Phase& phase : manifest.phases) {
    if (!std::isfinite(phase.seconds) || !std::isfinite(phase.start_seconds) || phase.seconds < 0 ||
        phase.start_seconds < 0) {
      return Broken("phase " + Printable(phase.name) + " has a time that is none");
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
  return Broken("\"" + Printable(path) + "\" is no path inside an image");
}

uint64_t FeaturesOf(const Manifest& manifest) {
  for (const File& file : manifest.files) {
    if (file.path.starts_with(std::string(kAgentFolder) + "/")) return kFeatureAgent;
  }
  return 0;
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
        fmt::format("checksums are over pieces of {} bytes; a power of two from {} to {} "
                    "is allowed",
                    manifest.chunk_bytes, kMinChunkBytes, kMaxChunkBytes));
  }
  for (auto check :
       {CheckFiles, CheckPacks, CheckRanges, CheckPackUse, CheckProcesses, CheckPhases}) {
    STASIS_TRY(check(manifest));
  }
  return {};
}

}  // namespace stasis::image
