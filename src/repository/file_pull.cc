#include "repository/file_pull.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fd.h"
#include "repository/limits.h"

namespace stasis::repository {

namespace {

// A part of a file, and the stored unit that has its bytes.
struct Part {
  StoredUnit stored;
  uint32_t file;  // index into the manifest's files
  uint64_t offset;
};

Status WriteAt(int fd, std::string_view data, uint64_t offset, const std::string& path) {
  while (!data.empty()) {
    const ssize_t some = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return FailErrno(errno, "write " + path);
    data.remove_prefix(static_cast<size_t>(some));
    offset += static_cast<uint64_t>(some);
  }
  return {};
}

class FilePuller {
 public:
  FilePuller(const PullContext& context, store::ImageWriter& writer)
      : context_(context), writer_(writer) {}

  Status Run() {
    STASIS_TRY(CreateFiles());
    FindParts();
    std::vector<StoredUnit> units;
    for (const Part& part : parts_) {
      if (units.empty() || units.back() != part.stored) units.push_back(part.stored);
    }
    const auto ranges = PlanFetches(context_.places, units);
    return ForEachWithProgress(
        ranges.size(), [&](size_t i) { return Fetch(ranges[i]); }, context_.done, context_.total,
        context_.progress);
  }

 private:
  const store::File& File(uint32_t index) const { return context_.record.manifest.files[index]; }

  // Creates all files with their full lengths. Parts that are zero stay holes.
  Status CreateFiles() {
    for (const store::File& file : context_.record.manifest.files) {
      STASIS_ASSIGN(UniqueFd fd, writer_.AddFile(file.path));
      if (::ftruncate(fd.get(), static_cast<off_t>(file.size_bytes)) != 0) {
        return FailErrno(errno, "make " + file.path);
      }
      files_.push_back(std::move(fd));
    }
    return {};
  }

  void FindParts() {
    const auto sequences = SequencesOf(context_.record.manifest);
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].kind != Sequence::Kind::kFile) continue;
      uint64_t offset = 0;
      for (const StoredRun& run : context_.record.sequences[i]) {
        for (uint32_t k = 0; !run.is_zero() && k < run.units; ++k) {
          parts_.push_back({{run.pack, run.first + k},
                            static_cast<uint32_t>(sequences[i].index),
                            offset + uint64_t{k} * kFileUnitBytes});
        }
        offset += uint64_t{run.units} * kFileUnitBytes;
      }
    }
    std::sort(parts_.begin(), parts_.end(),
              [](const Part& a, const Part& b) { return a.stored < b.stored; });
  }

  Status Fetch(const FetchRange& range) {
    auto received = [&](uint32_t unit, std::string_view plain) -> Status {
      const StoredUnit stored{range.pack, unit};
      STASIS_TRY(
          CheckUnitName(context_.pack_names, context_.names, context_.places, stored, plain));
      auto part = std::lower_bound(
          parts_.begin(), parts_.end(), stored,
          [](const Part& a, const StoredUnit& wanted) { return a.stored < wanted; });
      for (; part != parts_.end() && part->stored == stored; ++part) {
        STASIS_TRY(WriteAt(files_[part->file].get(), plain, part->offset, File(part->file).path));
        context_.done += plain.size();
      }
      context_.fetched += plain.size();
      return {};
    };
    return FetchUnits(context_.repository, context_.places, range, received, context_.call);
  }

  const PullContext& context_;
  store::ImageWriter& writer_;
  std::vector<UniqueFd> files_;
  std::vector<Part> parts_;  // by stored unit
};

}  // namespace

Status PullFiles(const PullContext& context, store::ImageWriter& writer) {
  return FilePuller(context, writer).Run();
}

}  // namespace stasis::repository
