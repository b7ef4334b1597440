#include "image/page_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

#include "image/beneath.h"

namespace stasis::image {

namespace {

constexpr unsigned kBusyReads = 2;  // more threads than processors, which wait for the storage
constexpr size_t kNamedPages = 8;   // of one pack: a lost pack must not fill the screen
constexpr char kHint[] = "Take another copy of the image, or an older checkpoint.";

// A file on its way, mapped.
class Output {
 public:
  static Result<Output> Make(int folder_fd, const PageFile& file) {
    const std::string name = file.path.substr(file.path.find('/') + 1);
    STASIS_ASSIGN(UniqueFd fd, OpenBeneath(folder_fd, name, O_RDWR | O_CREAT | O_EXCL));
    if (::ftruncate(fd.get(), static_cast<off_t>(file.size_bytes)) != 0) {
      return FailErrno(errno, "make " + name);
    }
    STASIS_TRY(TakeRoom(fd.get(), file, name));
    void* data = ::mmap(nullptr, file.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return FailErrno(errno, "map " + name);
    return Output(static_cast<char*>(data), file.size_bytes);
  }
  Output(Output&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  char* data() const { return data_; }

 private:
  Output(char* data, uint64_t size) : data_(data), size_(size) {}

  // SAFETY: to write to a page of a mapping that there is no room for is a SIGBUS.
  static Status TakeRoom(int fd, const PageFile& file, const std::string& name) {
    uint64_t at = 0;
    for (size_t i = 0; i < file.runs.size();) {
      const bool zero = file.runs[i].is_zero();
      const uint64_t begin = at;
      for (; i < file.runs.size() && file.runs[i].is_zero() == zero; ++i) {
        at += uint64_t{file.runs[i].pages} * kPageBytes;
      }
      if (zero) continue;
      const int error =
          ::posix_fallocate(fd, static_cast<off_t>(begin), static_cast<off_t>(at - begin));
      if (error != 0) return FailErrno(error, "make room for " + name);
    }
    return {};
  }

  char* data_;
  uint64_t size_;
};

}  // namespace

Result<PageReader> PageReader::Open(const ImageReader& image, std::vector<Finding>* findings) {
  PageReader pages(image.manifest());
  std::vector<Finding> found;
  for (const Pack& pack : image.manifest().packs) {
    pages.packs_.push_back({pack.path(), std::nullopt});
    if (!pack.holds_pages) continue;
    auto reader = image.OpenPagePack(pack);
    if (reader) {
      pages.packs_.back().reader = std::move(*reader);
    } else if (findings == nullptr) {
      return Fail(std::move(reader).error());
    } else {
      const bool missing = reader.error().code == Code::kNotFound;
      found.push_back(
          {pack.path(), missing ? "is missing" : "cannot be read: " + reader.error().ToString()});
    }
  }
  pages.PlanJobs(found);
  if (findings == nullptr && !found.empty()) {
    return Fail(Code::kDataLoss, Domain::kImage, 0, found[0].path + " " + found[0].message, kHint);
  }
  if (findings != nullptr) findings->insert(findings->end(), found.begin(), found.end());
  return pages;
}

void PageReader::PlanJobs(std::vector<Finding>& findings) {
  std::vector<const PagePackReader*> readers;
  for (const OpenedPack& pack : packs_) readers.push_back(pack.reader ? &*pack.reader : nullptr);
  jobs_.emplace(std::move(readers));
  std::vector<bool> complained(packs_.size());
  for (uint32_t f = 0; f < manifest_->page_files.size(); ++f) {
    const PageFile& file = manifest_->page_files[f];
    uint64_t at = 0;
    for (const PageRun& run : file.runs) {
      const uint64_t begin = at;
      at += uint64_t{run.pages} * kPageBytes;
      if (run.is_zero() || !packs_[run.pack].reader) continue;
      const size_t there = packs_[run.pack].reader->pages().size();
      if (uint64_t{run.first} + run.pages <= there) {
        jobs_->Add(run.pack, run.first, run.pages, f, begin);
      } else if (!complained[run.pack]) {
        complained[run.pack] = true;  // the next ones would say the same
        findings.push_back(
            {packs_[run.pack].path, fmt::format("has {} pages, and {} needs {} from page {} on",
                                                there, file.path, run.pages, run.first)});
      }
    }
  }
  jobs_->Plan();
  const auto used = jobs_->Used();
  const bool all_there = findings.empty();
  for (size_t i = 0; i < packs_.size(); ++i) {
    stored_bytes_ += used[i].stored_bytes;
    const Pack& pack = manifest_->packs[i];
    if (!packs_[i].reader || !all_there ||
        used[i] == PageJobs::Use{pack.used_blocks, pack.used_bytes}) {
      continue;
    }
    findings.push_back(
        {pack.path(),
         fmt::format("has {} pages of {} bytes for this image, recorded are {} of {}",
                     used[i].pages, used[i].stored_bytes, pack.used_blocks, pack.used_bytes)});
  }
}

Status PageReader::RunJob(size_t job, std::span<char* const> outputs) const {
  PageJobs::Place where;
  auto status = jobs_->Run(job, outputs, where);
  if (status) return status;
  const std::string& path = packs_[jobs_->PackOf(job)].path;
  Error& error = status.error();
  if (!error.message.starts_with(path)) error.message = path + ": " + error.message;
  error.message +=
      fmt::format(" ({} at byte {})", manifest_->page_files[where.output].path, where.at);
  return status;
}

Status PageReader::Check(const Progress& progress, std::vector<Finding>& findings) const {
  std::atomic<uint64_t> done{0};
  std::mutex mutex;  // of damaged
  std::vector<std::vector<Finding>> damaged(packs_.size());
  auto check = [&](size_t i) {
    const uint32_t pack = jobs_->PackOf(i);
    if (auto status = RunJob(i, {}); !status) {
      const std::string& path = packs_[pack].path;
      std::string message = status.error().ToString();
      if (message.starts_with(path + " ")) message.erase(0, path.size() + 1);
      std::lock_guard lock(mutex);
      damaged[pack].push_back({path, std::move(message)});
    }
    done += jobs_->BytesOf(i);
  };
  STASIS_TRY(ForEach(jobs_->size(), check, done, stored_bytes_, progress, kBusyReads));
  for (auto& of_pack : damaged) {
    const size_t more = of_pack.size() - std::min(of_pack.size(), kNamedPages);
    of_pack.resize(of_pack.size() - more);
    for (Finding& finding : of_pack) findings.push_back(std::move(finding));
    if (more == 0) continue;
    findings.push_back({findings.back().path, fmt::format("is damaged at {} more places", more)});
  }
  return {};
}

Status PageReader::MakeFiles(int folder_fd, const Progress& progress) const {
  std::vector<Output> files;
  std::vector<char*> outputs;
  for (const PageFile& file : manifest_->page_files) {
    STASIS_ASSIGN(Output output, Output::Make(folder_fd, file));
    outputs.push_back(output.data());
    files.push_back(std::move(output));
  }
  std::atomic<uint64_t> done{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // of failed
  Status failed;
  auto read = [&](size_t i) {
    if (stop) return;
    auto status = RunJob(i, outputs);
    done += jobs_->BytesOf(i);
    if (status) return;
    std::lock_guard lock(mutex);
    if (failed) failed = std::move(status);
    stop = true;
  };
  STASIS_TRY(ForEach(jobs_->size(), read, done, stored_bytes_, progress, kBusyReads));
  return failed;
}

}  // namespace stasis::image
