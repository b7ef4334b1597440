#include "image/reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/deadline.h"
#include "base/file.h"
#include "image/block_reader.h"
#include "image/image_folder.h"
#include "image/little_endian.h"
#include "image/manifest_check.h"
#include "image/manifest_codec.h"
#include "image/pack.h"
#include "image/page_pack.h"
#include "image/page_reader.h"

namespace stasis::image {

namespace {

constexpr char kHint[] = "Take another copy of the image, or an older checkpoint.";

// The whole manifest file, its length bounded before anything is allocated.
Result<std::string> ReadManifestFile(int folder_fd, const std::string& image) {
  auto opened = OpenRegular(folder_fd, kManifestName);
  if (!opened) {
    Error error = std::move(opened.error());
    if (error.code == Code::kNotFound) {
      return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                  fmt::format("{} is no Stasis image: it has no {}", image, kManifestName));
    }
    return Fail(std::move(error).WithContext("open image " + image));
  }
  constexpr uint64_t kMostBytes = kMaxManifestBytes + kEnvelopeBytes + kOriginBytes;
  if (opened->size_bytes > kMostBytes) {
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                fmt::format("{}: {} has {} bytes; the most is {}", image, kManifestName,
                            opened->size_bytes, kMostBytes),
                kHint);
  }
  std::string file(opened->size_bytes, '\0');
  if (auto status = PreadAll(opened->fd.get(), file.data(), file.size(), 0); !status) {
    return Fail(std::move(status.error()).WithContext("read manifest of " + image));
  }
  return file;
}

std::string LengthMessage(uint64_t found, uint64_t expected) {
  return fmt::format("is {} than it was: {} bytes, recorded are {}",
                     found < expected ? "shorter" : "longer", found, expected);
}

// The first piece of a file whose checksum differs from the recorded one, as a finding.
std::optional<Finding> Compare(const File& recorded, const File& found, uint32_t chunk_bytes) {
  for (size_t i = 0; i < recorded.checksums.size(); ++i) {
    if (found.checksums[i] == recorded.checksums[i]) continue;
    uint64_t begin = uint64_t{i} * chunk_bytes;
    uint64_t end = std::min<uint64_t>(begin + chunk_bytes, recorded.size_bytes);
    return Finding{recorded.path,
                   fmt::format("is damaged between byte {} and {}: checksum {}, recorded is {}",
                               begin, end, found.checksums[i].Hex(), recorded.checksums[i].Hex())};
  }
  return std::nullopt;
}

}  // namespace

Status VerifyReport::ToStatus(const std::string& image) const {
  if (ok()) return {};
  constexpr size_t kNamed = 3;
  std::string message = fmt::format("image {} is damaged: ", image);
  for (size_t i = 0; i < std::min(kNamed, findings.size()); ++i) {
    message += fmt::format("{}{} {}", i > 0 ? "; " : "", findings[i].path, findings[i].message);
  }
  if (findings.size() > kNamed) {
    message += fmt::format("; and {} more", findings.size() - kNamed);
  }
  return Fail(Code::kDataLoss, Domain::kImage, 0, std::move(message), kHint);
}

Result<std::unique_ptr<ImageReader>> ImageReader::Open(const std::string& path, Deletion deletion) {
  auto folder = OpenFolder(path);
  if (!folder) return Fail(std::move(folder.error()).WithContext("open image " + path));
  std::unique_ptr<ImageReader> reader(new ImageReader(AbsolutePath(path), std::move(*folder)));
  if (deletion == Deletion::kExcluded) {
    STASIS_TRY(LockFolder(reader->folder_.get(), LockKind::kShared, "image " + path));
  }
  STASIS_ASSIGN(std::string file, ReadManifestFile(reader->folder_.get(), path));
  STASIS_ASSIGN(std::string_view body, OpenEnvelope(file, path));
  reader->format_version_ = NumberAt<uint32_t>(file, 8);
  auto manifest = DecodeManifest(body, reader->format_version_);
  if (!manifest) {
    return Fail(std::move(manifest.error())
                    .WithContext(std::string("read ") + kManifestName)
                    .WithContext("open image " + path));
  }
  reader->manifest_ = std::move(*manifest);
  reader->origin_ = ReadOrigin(file);
  if ((NumberAt<uint64_t>(file, 24) & ~kFeatureOrigin) != FeaturesOf(reader->manifest_)) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("open image {}: {} says that it uses other features than it does", path,
                            kManifestName),
                kHint);
  }
  return reader;
}

Origin ImageReader::OriginBy(const OriginKey* key) const {
  if (!origin_) return Origin::kUnknown;
  if (key == nullptr || origin_->mac.key_id != key->id()) return Origin::kOther;
  return key->Verify(origin_->mac, origin_->digest) ? Origin::kOwn : Origin::kChanged;
}

std::optional<Id128> ImageReader::origin_key_id() const {
  if (!origin_) return std::nullopt;
  return origin_->mac.key_id;
}

// What lies in the image and is not in the manifest.
void ImageReader::FindStrays(std::vector<Finding>& findings) const {
  std::unordered_set<std::string_view> listed;
  for (const File& file : manifest_.files) listed.insert(file.path);
  std::vector<std::string> packs;
  packs.reserve(manifest_.packs.size());  // `listed` points into it
  for (const Pack& pack : manifest_.packs) listed.insert(packs.emplace_back(pack.path()));

  auto list = [&](int fd, const std::string& where) -> std::vector<Entry> {
    auto entries = ListFolder(fd);
    if (entries) return std::move(*entries);
    findings.push_back({where, "cannot be listed: " + entries.error().ToString()});
    return {};
  };
  for (const Entry& entry : list(folder_.get(), ".")) {
    if (entry.name == kManifestName) continue;
    bool known =
        std::find(std::begin(kFolders), std::end(kFolders), entry.name) != std::end(kFolders);
    if (!known || !entry.is_folder) {
      findings.push_back({Printable(entry.name), "is not part of the image"});
      continue;
    }
    auto folder = OpenBeneath(folder_.get(), entry.name, O_RDONLY | O_DIRECTORY);
    if (!folder) {
      findings.push_back({entry.name, "cannot be opened: " + folder.error().ToString()});
      continue;
    }
    for (const Entry& file : list(folder->get(), entry.name)) {
      std::string path = entry.name + "/" + file.name;
      if (!listed.contains(path)) {
        findings.push_back({Printable(path), "is not part of the image"});
      }
    }
  }
}

namespace {

// A block that some range of the image refers to, once.
struct UsedBlock {
  size_t pack;
  const PackEntry* entry;
  uint64_t address;
};

constexpr size_t kNamedBlocks = 8;  // of one pack: a lost pack must not fill the screen

}  // namespace

// Every block that a range names is in its pack, and with kFull its bytes are what they were. Other
// blocks of a pack are other images' matter; they may be holes. Returns the bytes compared.
Result<uint64_t> ImageReader::VerifyBlocks(VerifyLevel level, const Progress& progress,
                                           std::vector<Finding>& findings) const {
  if (manifest_.ranges.empty()) return 0;
  STASIS_ASSIGN(BlockReader blocks, BlockReader::Open(*this, &findings));
  std::vector<UsedBlock> used;
  std::vector<std::pair<uint64_t, uint64_t>> counted(blocks.packs().size());  // blocks, bytes
  std::unordered_set<const PackEntry*> seen;
  for (const DeviceRange& range : manifest_.ranges) {
    bool complained = false;  // the next ones of this range would say the same
    for (size_t i = 0; i < range.blocks.size(); ++i) {
      if (range.blocks[i].IsZero()) continue;
      auto place = blocks.Find(range, i);
      if (!place) {
        bool pack_lost = !range.packs.empty() && !blocks.packs()[range.packs[i]].reader;
        if (!complained && !pack_lost) findings.push_back({"gpu", place.error().message});
        complained |= !pack_lost;
        continue;
      }
      if (!seen.insert(place->entry).second) continue;
      used.push_back({place->pack, place->entry, range.address + i * uint64_t{range.block_bytes}});
      counted[place->pack].first += 1;
      counted[place->pack].second += place->entry->stored_bytes;
    }
  }
  for (size_t i = 0; i < manifest_.packs.size(); ++i) {
    const Pack& pack = manifest_.packs[i];
    if (!blocks.packs()[i].reader || !findings.empty()) continue;
    if (counted[i] == std::pair(pack.used_blocks, pack.used_bytes)) continue;
    findings.push_back({pack.path(), fmt::format("has {} blocks of {} bytes for this image, "
                                                 "recorded are {} of {}",
                                                 counted[i].first, counted[i].second,
                                                 pack.used_blocks, pack.used_bytes)});
  }
  // In format 1 the files' checksums have covered the packs.
  if (level != VerifyLevel::kFull || manifest_.format == 1) return 0;

  uint64_t total = 0;
  for (const UsedBlock& block : used) total += block.entry->stored_bytes;
  std::atomic<uint64_t> done{0};
  std::mutex mutex;  // of damaged
  std::vector<std::vector<Finding>> damaged(blocks.packs().size());
  auto check = [&](size_t i) {
    const UsedBlock& block = used[i];
    const auto& pack = blocks.packs()[block.pack];
    if (auto status = pack.reader->Check(*block.entry); !status) {
      std::string message = status.error().ToString();
      if (message.starts_with(pack.path + " ")) message.erase(0, pack.path.size() + 1);
      std::lock_guard lock(mutex);
      damaged[block.pack].push_back(
          {pack.path, fmt::format("{} (device address {:#x})", message, block.address)});
    }
    done += block.entry->stored_bytes;
  };
  STASIS_TRY(ForEach(used.size(), check, done, total, progress));
  for (auto& of_pack : damaged) {
    size_t more = of_pack.size() - std::min(of_pack.size(), kNamedBlocks);
    of_pack.resize(of_pack.size() - more);
    for (Finding& finding : of_pack) findings.push_back(std::move(finding));
    if (more == 0) continue;
    findings.push_back({findings.back().path, fmt::format("has {} more damaged blocks", more)});
  }
  return total;
}

// The same for pages.
Result<uint64_t> ImageReader::VerifyPages(VerifyLevel level, const Progress& progress,
                                          std::vector<Finding>& findings) const {
  if (manifest_.page_files.empty()) return 0;
  STASIS_ASSIGN(PageReader pages, PageReader::Open(*this, &findings));
  if (level != VerifyLevel::kFull) return 0;
  STASIS_TRY(pages.Check(progress, findings));
  return pages.stored_bytes();
}

Result<VerifyReport> ImageReader::Verify(VerifyLevel level, const Progress& progress) const {
  Stopwatch watch;
  VerifyReport report;
  report.files = manifest_.files.size() + manifest_.packs.size();

  // Files first, then blocks: one progress over both.
  auto part = [&, total = manifest_.TotalBytes()](uint64_t before) -> Progress {
    if (!progress) return nullptr;
    return [&progress, total, before](uint64_t done, uint64_t) {
      return progress(std::min(before + done, total), total);
    };
  };
  std::vector<ChecksumJob> jobs;
  std::vector<const File*> recorded;  // of the job with the same index
  for (const File& file : manifest_.files) {
    auto opened = OpenRegular(folder_.get(), file.path);
    if (!opened) {
      bool missing = opened.error().code == Code::kNotFound;
      report.findings.push_back(
          {file.path, missing ? "is missing" : "cannot be read: " + opened.error().ToString()});
    } else if (opened->size_bytes != file.size_bytes) {
      report.findings.push_back({file.path, LengthMessage(opened->size_bytes, file.size_bytes)});
    } else {
      jobs.push_back({{file.path, file.size_bytes, {}}, {}});
      recorded.push_back(&file);
    }
  }
  if (level != VerifyLevel::kPresence) {
    STASIS_TRY(
        ComputeChecksums(folder_.get(), manifest_.chunk_bytes, jobs, Writeback::kNone, part(0)));
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].error) {
        report.findings.push_back(
            {jobs[i].file.path, "cannot be read: " + jobs[i].error->ToString()});
        continue;
      }
      report.bytes += jobs[i].file.size_bytes;
      if (auto finding = Compare(*recorded[i], jobs[i].file, manifest_.chunk_bytes)) {
        report.findings.push_back(std::move(*finding));
      }
    }
  }
  STASIS_ASSIGN(uint64_t block_bytes, VerifyBlocks(level, part(report.bytes), report.findings));
  report.bytes += block_bytes;
  STASIS_ASSIGN(uint64_t page_bytes, VerifyPages(level, part(report.bytes), report.findings));
  report.bytes += page_bytes;
  auto by_path = [](const Finding& a, const Finding& b) { return a.path < b.path; };
  std::stable_sort(report.findings.begin(), report.findings.end(), by_path);
  std::vector<Finding> strays;
  FindStrays(strays);
  std::stable_sort(strays.begin(), strays.end(), by_path);
  report.findings.insert(report.findings.end(), strays.begin(), strays.end());
  report.seconds = watch.Seconds();
  return report;
}

Result<OpenedFile> ImageReader::OpenFile(const std::string& path) const {
  for (const File& file : manifest_.files) {
    if (file.path != path) continue;
    STASIS_ASSIGN(OpenedFile opened, OpenRegular(folder_.get(), path));
    if (opened.size_bytes != file.size_bytes) {
      return Fail(Code::kDataLoss, Domain::kImage, 0,
                  fmt::format("image {}: {} {}", path_, path,
                              LengthMessage(opened.size_bytes, file.size_bytes)),
                  kHint);
    }
    return opened;
  }
  return Fail(Code::kNotFound, Domain::kImage, 0,
              fmt::format("image {} lists no file {}", path_, Printable(path)));
}

Result<PackReader> ImageReader::OpenPack(const Pack& pack) const {
  return OpenPackAs<PackReader>(pack);
}

Result<PagePackReader> ImageReader::OpenPagePack(const Pack& pack) const {
  return OpenPackAs<PagePackReader>(pack);
}

template <class Reader>
Result<Reader> ImageReader::OpenPackAs(const Pack& pack) const {
  STASIS_ASSIGN(OpenedFile opened, OpenRegular(folder_.get(), pack.path()));
  auto damaged = [&](const std::string& how) {
    return Fail(Code::kDataLoss, Domain::kImage, 0, pack.path() + " " + how, kHint);
  };
  if (opened.size_bytes != pack.size_bytes) {
    return damaged(LengthMessage(opened.size_bytes, pack.size_bytes));
  }
  STASIS_ASSIGN(Reader reader, Reader::Open(std::move(opened), pack.path()));
  if (reader.id() != pack.id || reader.index_checksum() != pack.index_checksum) {
    return damaged("is another pack than the one recorded");
  }
  return reader;
}

Result<UniqueFd> ImageReader::OpenCpuFolder() const {
  return OpenBeneath(folder_.get(), "cpu", O_RDONLY | O_DIRECTORY);
}

}  // namespace stasis::image
