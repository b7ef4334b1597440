#include "store/image_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/deadline.h"
#include "base/file.h"
#include "base/little_endian.h"
#include "store/image_folder.h"
#include "store/manifest_check.h"
#include "store/manifest_codec.h"
#include "store/pack.h"
#include "store/unit_reader.h"

namespace stasis::store {

namespace {

// Reads the manifest file. Checks its length before it allocates memory.
Result<std::string> ReadManifestFile(int folder_fd, const std::string& image) {
  auto opened = OpenRegular(folder_fd, kManifestName);
  if (!opened) {
    Error error = std::move(opened.error());
    if (error.code == Code::kNotFound) {
      return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                  fmt::format("{} is not a Stasis image: it has no {}", image, kManifestName));
    }
    return Fail(std::move(error).WithContext("open image " + image));
  }
  constexpr uint64_t kMostBytes = kMaxManifestBytes + kEnvelopeBytes + kOriginBytes;
  if (opened->size_bytes > kMostBytes) {
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                fmt::format("{}: {} has {} bytes; at most {} are allowed", image, kManifestName,
                            opened->size_bytes, kMostBytes),
                kOtherCopyHint);
  }
  std::string file(opened->size_bytes, '\0');
  STASIS_TRY(Annotate(PreadAll(opened->fd.get(), file.data(), file.size(), 0),
                      "read manifest of " + image));
  return file;
}

std::string LengthMessage(uint64_t found, uint64_t expected) {
  return fmt::format("is {} than recorded: it has {} bytes instead of {}",
                     found < expected ? "shorter" : "longer", found, expected);
}

// Returns a finding about the first chunk whose checksum differs from the recorded one.
std::optional<Finding> Compare(const File& recorded, const File& found, uint32_t chunk_bytes) {
  for (size_t i = 0; i < recorded.checksums.size(); ++i) {
    if (found.checksums[i] == recorded.checksums[i]) continue;
    uint64_t begin = uint64_t{i} * chunk_bytes;
    uint64_t end = std::min<uint64_t>(begin + chunk_bytes, recorded.size_bytes);
    return Finding{
        recorded.path,
        fmt::format("is damaged between byte {} and {}: its checksum is {} instead of {}", begin,
                    end, found.checksums[i].Hex(), recorded.checksums[i].Hex())};
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
  return Fail(Code::kDataLoss, Domain::kImage, 0, std::move(message), kOtherCopyHint);
}

Result<std::unique_ptr<ImageReader>> ImageReader::Open(const std::string& path, Deletion deletion) {
  STASIS_ASSIGN(auto reader, OpenAny(path, deletion));
  if (!reader->manifest_.ranges_elsewhere) return reader;
  return Fail(
      Code::kFailedPrecondition, Domain::kImage, 0,
      fmt::format("image {} has no GPU memory: it is a part of a restore from a repository", path),
      "restore the image from the repository again");
}

Result<std::unique_ptr<ImageReader>> ImageReader::OpenWithoutRanges(const std::string& path) {
  return OpenAny(path, Deletion::kExcluded);
}

Result<std::unique_ptr<ImageReader>> ImageReader::OpenAny(const std::string& path,
                                                          Deletion deletion) {
  STASIS_ASSIGN(UniqueFd folder, Annotate(OpenFolder(path), "open image " + path));
  std::unique_ptr<ImageReader> reader(new ImageReader(AbsolutePath(path), std::move(folder)));
  if (deletion == Deletion::kExcluded) {
    STASIS_TRY(LockFolder(reader->folder_.get(), LockKind::kShared, "image " + path));
  }
  STASIS_ASSIGN(std::string file, ReadManifestFile(reader->folder_.get(), path));
  STASIS_ASSIGN(std::string_view body, OpenEnvelope(file, path));
  STASIS_ASSIGN(
      reader->manifest_,
      Annotate(DecodeManifest(body), fmt::format("open image {}: read {}", path, kManifestName)));
  reader->origin_ = ReadOrigin(file);
  if ((NumberAt<uint64_t>(file, 24) & ~kFeatureOrigin) != FeaturesOf(reader->manifest_)) {
    return Fail(
        Code::kInvalidArgument, Domain::kImage, 0,
        fmt::format("open image {}: the features that {} announces do not match its contents", path,
                    kManifestName),
        kOtherCopyHint);
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

// Finds files that are not in the manifest.
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

// Checks that every unit to which the image refers is in its pack and, with kFull, intact. Other
// units of a pack belong to other images and may be holes. Returns the number of bytes that were
// compared.
Result<uint64_t> ImageReader::VerifyUnits(VerifyLevel level, const Progress& progress,
                                          std::vector<Finding>& findings) const {
  if (manifest_.packs.empty()) return 0;
  STASIS_ASSIGN(UnitReader units, UnitReader::Open(*this, UnitReader::All(manifest_), &findings));
  if (level != VerifyLevel::kFull) return 0;
  STASIS_TRY(units.Check(progress, findings));
  return units.stored_bytes();
}

Result<VerifyReport> ImageReader::Verify(VerifyLevel level, const Progress& progress) const {
  Stopwatch watch;
  VerifyReport report;
  report.files = manifest_.files.size() + manifest_.packs.size();

  // Returns the progress of files or units as a part of the progress of the whole image.
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
  STASIS_ASSIGN(uint64_t unit_bytes, VerifyUnits(level, part(report.bytes), report.findings));
  report.bytes += unit_bytes;
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
                  kOtherCopyHint);
    }
    return opened;
  }
  return Fail(Code::kNotFound, Domain::kImage, 0,
              fmt::format("image {} lists no file {}", path_, Printable(path)));
}

Result<PackReader> ImageReader::OpenPack(const Pack& pack) const {
  STASIS_ASSIGN(OpenedFile opened, OpenRegular(folder_.get(), pack.path()));
  auto damaged = [&](const std::string& how) {
    return Fail(Code::kDataLoss, Domain::kImage, 0, pack.path() + " " + how, kOtherCopyHint);
  };
  if (opened.size_bytes != pack.size_bytes) {
    return damaged(LengthMessage(opened.size_bytes, pack.size_bytes));
  }
  STASIS_ASSIGN(PackReader reader, PackReader::Open(std::move(opened), pack.path()));
  if (reader.id() != pack.id || reader.index().checksum != pack.index_checksum ||
      reader.index().unit_bytes != pack.unit_bytes) {
    return damaged("is not the recorded pack");
  }
  return reader;
}

Result<UniqueFd> ImageReader::OpenCpuFolder() const {
  return OpenBeneath(folder_.get(), "cpu", O_RDONLY | O_DIRECTORY);
}

}  // namespace stasis::store
