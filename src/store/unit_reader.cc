#include "store/unit_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/descriptor_table.h"
#include "store/beneath.h"
#include "store/thread_buffer.h"

namespace stasis::store {

namespace {

constexpr unsigned kReadThreads = 2;  // in addition to one per processor; threads often wait
constexpr size_t kNamedUnits = 8;     // findings for one pack, so that they do not fill the screen

// A page file that is written through a memory mapping.
class Output {
 public:
  static Result<Output> Make(int folder_fd, const PageFile& file) {
    const std::string name = file.path.substr(file.path.find('/') + 1);
    STASIS_ASSIGN(UniqueFd fd, OpenBeneath(folder_fd, name, O_RDWR | O_CREAT | O_EXCL));
    if (::ftruncate(fd.get(), static_cast<off_t>(file.size_bytes)) != 0) {
      return FailErrno(errno, "make " + name);
    }
    STASIS_TRY(ReserveSpace(fd.get(), file, name));
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

  // SAFETY: a write to a mapped page for which the file system has no space would raise SIGBUS.
  static Status ReserveSpace(int fd, const PageFile& file, const std::string& name) {
    uint64_t at = 0;
    for (size_t i = 0; i < file.runs.size();) {
      const bool zero = file.runs[i].is_zero();
      const uint64_t begin = at;
      for (; i < file.runs.size() && file.runs[i].is_zero() == zero; ++i) {
        at += uint64_t{file.runs[i].units} * kPageBytes;
      }
      if (zero) continue;
      const int error =
          ::posix_fallocate(fd, static_cast<off_t>(begin), static_cast<off_t>(at - begin));
      if (error != 0) return FailErrno(error, "reserve space for " + name);
    }
    return {};
  }

  char* data_;
  uint64_t size_;
};

}  // namespace

UnitReader::Selection UnitReader::All(const Manifest& manifest) {
  Selection all{std::vector<size_t>(manifest.ranges.size()), true, false, {}};
  std::iota(all.ranges.begin(), all.ranges.end(), size_t{0});
  return all;
}

UnitReader::UnitReader(const Manifest& manifest, Selection selection)
    : manifest_(&manifest), selection_(std::move(selection)) {
  for (size_t i : selection_.ranges) {
    const DeviceRange& range = manifest.ranges[i];
    sources_.push_back({fmt::format("device address {:#x}", range.address), range.address,
                        range.size_bytes, range.block_bytes, &range.runs});
  }
  if (!selection_.page_files) return;
  for (const PageFile& file : page_files()) {
    sources_.push_back({file.path, 0, file.size_bytes, kPageBytes, &file.runs});
  }
}

Result<UnitReader> UnitReader::Open(const ImageReader& image, Selection selection,
                                    std::vector<Finding>* findings) {
  UnitReader units(image.manifest(), std::move(selection));
  STASIS_TRY(units.OpenPacks(image, findings));
  std::vector<Finding> found;
  units.PlanJobs(found);
  if (findings != nullptr) {
    findings->insert(findings->end(), found.begin(), found.end());
  } else if (!found.empty()) {
    return Fail(Code::kDataLoss, Domain::kImage, 0, found[0].path + " " + found[0].message,
                kOtherCopyHint);
  }
  return units;
}

Status UnitReader::OpenPacks(const ImageReader& image, std::vector<Finding>* findings) {
  (void)RaiseDescriptorLimit();
  std::vector<bool> needed(manifest_->packs.size());
  for (const Source& source : sources_) {
    for (const UnitRun& run : *source.runs) {
      if (!run.is_zero()) needed[run.pack] = true;
    }
  }
  for (size_t i = 0; i < needed.size(); ++i) {
    const Pack& pack = manifest_->packs[i];
    packs_.push_back({pack.path(), std::nullopt});
    if (!needed[i]) continue;
    auto reader = image.OpenPack(pack);
    if (reader) {
      packs_.back().reader = std::move(*reader);
    } else if (findings == nullptr) {
      return Fail(std::move(reader).error());
    } else {
      const bool missing = reader.error().code == Code::kNotFound;
      findings->push_back(
          {pack.path(), missing ? "is missing" : "cannot be read: " + reader.error().ToString()});
    }
  }
  return {};
}

std::vector<const PackReader*> UnitReader::Readers() const {
  std::vector<const PackReader*> readers;
  for (const OpenedPack& pack : packs_) readers.push_back(pack.reader ? &*pack.reader : nullptr);
  return readers;
}

void UnitReader::PlanJobs(std::vector<Finding>& findings) {
  jobs_.emplace(Readers());
  bool all_there = true;
  std::vector<bool> complained(packs_.size());  // more findings would repeat the first
  auto complain = [&](uint32_t pack, std::string message) {
    if (!complained[pack]) findings.push_back({packs_[pack].path, std::move(message)});
    complained[pack] = true;
  };
  for (uint32_t output = 0; output < sources_.size(); ++output) {
    Source& source = sources_[output];
    ForEachRun(*source.runs, source.unit_bytes, source.size_bytes,
               [&](const UnitRun& run, uint64_t at, uint64_t bytes) {
                 source.offsets.push_back(at);
                 if (run.is_zero()) {
                   if (selection_.zeros) jobs_->AddZeros(bytes, output, at);
                   return;
                 }
                 if (!packs_[run.pack].reader) {
                   all_there = false;
                   return;
                 }
                 const PackReader& pack = *packs_[run.pack].reader;
                 if (uint64_t{run.first} + run.units > pack.units()) {
                   complain(run.pack, fmt::format("has {} units, but {} needs {} from unit {} on",
                                                  pack.units(), source.name, run.units, run.first));
                 } else if (uint64_t there = jobs_->Add(run.pack, run.first, run.units, output, at);
                            there != bytes) {
                   complain(run.pack, fmt::format("has {} bytes in the units of {} instead of {}",
                                                  there, source.name, bytes));
                 }
               });
  }
  all_there &= findings.empty();
  jobs_->Plan(selection_.zeros ? UnitJobs::Order::kOutputs : UnitJobs::Order::kPacks);
  const auto used = jobs_->Used();
  const bool everything = selection_.page_files && !selection_.files &&
                          selection_.ranges.size() == manifest_->ranges.size();
  for (size_t i = 0; i < packs_.size(); ++i) {
    stored_bytes_ += used[i].stored_bytes;
    const Pack& pack = manifest_->packs[i];
    if (!all_there || !everything || used[i] == UnitJobs::Use{pack.used_units, pack.used_bytes}) {
      continue;
    }
    findings.push_back(
        {pack.path(),
         fmt::format("has {} units of {} bytes for this image instead of {} units of {} bytes",
                     used[i].units, used[i].stored_bytes, pack.used_units, pack.used_bytes)});
  }
}

// Adds pack and address to an error of UnitJobs.
Status UnitReader::Locate(Status status, uint32_t pack, const UnitJobs::UnitPlace& where) const {
  if (status || status.error().code == Code::kCancelled || pack >= packs_.size()) return status;
  Error& error = status.error();
  const std::string& path = packs_[pack].path;
  if (!error.message.starts_with(path)) error.message = path + ": " + error.message;
  const Source& source = sources_[where.output];
  error.message += source.address != 0
                       ? fmt::format(" (device address {:#x})", source.address + where.at)
                       : fmt::format(" ({} at byte {})", source.name, where.at);
  return status;
}

Status UnitReader::RunJob(size_t job, std::span<char* const> outputs,
                          const UnitJobs::Placed& placed) const {
  UnitJobs::UnitPlace where;
  Status run = jobs_->Run(job, outputs, placed, where);
  return Locate(std::move(run), jobs_->PackOf(job), where);
}

Status UnitReader::ReadItem(size_t item, char* buffer, std::vector<UnitJobs::Part>& parts) const {
  UnitJobs::UnitPlace where;
  Status read = jobs_->Read(item, buffer, parts, where);
  return Locate(std::move(read), jobs_->PackOf(item), where);
}

// Reads the unit again, to tell a damaged pack from bytes that changed on their way.
Status UnitReader::ExplainWrongUnit(uint32_t pack, const UnitJobs::UnitPlace& where) const {
  UnitJobs jobs(Readers());
  jobs.Add(pack, where.unit, 1);
  jobs.Plan(UnitJobs::Order::kPacks);
  UnitJobs::UnitPlace first;
  Status read = jobs.Run(0, {}, nullptr, first);
  if (read) {
    read = Fail(Code::kDataLoss, fmt::format("unit {} is right in the image, but not where it was "
                                             "copied to",
                                             where.unit));
  }
  return Locate(std::move(read), pack, where);
}

Status UnitReader::CheckNames(std::span<const Id128> names) const {
  size_t next = 0;
  for (uint32_t output = 0; output < sources_.size(); ++output) {
    const Source& source = sources_[output];
    uint64_t at = 0;
    for (const UnitRun& run : *source.runs) {
      for (uint32_t i = 0; i < run.units; ++i, at += source.unit_bytes) {
        if (next == names.size()) return Fail(Code::kInternal, "a unit has no name");
        const Id128& found = names[next++];
        if (!run.is_zero()) {
          const PackUnit& unit = packs_[run.pack].reader->index().units[run.first + i];
          if (found == unit.name) continue;
          return ExplainWrongUnit(run.pack, {{output, at}, run.first + i});
        }
        if (found.IsZero()) continue;
        return Fail(Code::kDataLoss,
                    fmt::format("device address {:#x} is zero in the image, but not where it was "
                                "copied to",
                                source.address + at));
      }
    }
  }
  return {};
}

Status UnitReader::Check(const Progress& progress, std::vector<Finding>& findings) const {
  std::atomic<uint64_t> done{0};
  std::mutex mutex;  // guards `damaged`
  std::vector<std::vector<Finding>> damaged(packs_.size());
  auto check = [&](size_t i) -> Status {
    if (auto status = RunJob(i, {}, nullptr); !status) {
      const uint32_t pack = jobs_->PackOf(i);
      const std::string& path = packs_[pack].path;
      std::string message = status.error().ToString();
      if (message.starts_with(path + " ")) message.erase(0, path.size() + 1);
      std::lock_guard lock(mutex);
      damaged[pack].push_back({path, std::move(message)});
    }
    done += jobs_->BytesOf(i);
    return {};
  };
  STASIS_TRY(
      ForEachWithProgress(jobs_->size(), check, done, stored_bytes_, progress, kReadThreads));
  for (auto& of_pack : damaged) {
    const size_t more = of_pack.size() - std::min(of_pack.size(), kNamedUnits);
    of_pack.resize(of_pack.size() - more);
    for (Finding& finding : of_pack) findings.push_back(std::move(finding));
    if (more == 0) continue;
    findings.push_back({findings.back().path, fmt::format("is damaged at {} more places", more)});
  }
  return {};
}

Status UnitReader::Read(std::span<char* const> outputs, const UnitJobs::Placed& placed,
                        const Progress& progress) const {
  std::atomic<uint64_t> done{0};
  auto read = [&](size_t i) -> Status {
    STASIS_TRY(RunJob(i, outputs, placed));
    done += jobs_->BytesOf(i);
    return {};
  };
  return ForEachWithProgress(jobs_->size(), read, done, stored_bytes_, progress, kReadThreads);
}

Status UnitReader::CheckUnits(UnitJobs::UnitPlace& where, std::string_view data) const {
  const Source& source = sources_[where.output];
  const auto& runs = *source.runs;
  auto next = std::upper_bound(source.offsets.begin(), source.offsets.end(), where.at);
  for (auto run = static_cast<size_t>(next - source.offsets.begin()) - 1; !data.empty(); ++run) {
    const auto skipped =
        static_cast<uint32_t>((where.at - source.offsets[run]) / source.unit_bytes);
    for (uint32_t i = skipped; i < runs[run].units && !data.empty(); ++i) {
      where.unit = runs[run].first + i;
      const std::string_view unit = data.substr(0, source.unit_bytes);
      STASIS_TRY(packs_[runs[run].pack].reader->CheckUnit(where.unit, unit));
      data.remove_prefix(unit.size());
      where.at += unit.size();
    }
  }
  return {};
}

Status UnitReader::DeliverJob(size_t job, const Taken& taken) const {
  thread_local ThreadBuffer<UnitJobs::kJobBytes> buffer;
  thread_local std::vector<UnitJobs::Part> parts;
  parts.clear();
  STASIS_TRY(ReadItem(job, buffer.data(), parts));
  for (const UnitJobs::Part& part : parts) {
    const std::string_view data(buffer.data() + part.buffer_offset, part.bytes);
    UnitJobs::UnitPlace where{part.to, 0};
    Status checked = CheckUnits(where, data);
    STASIS_TRY(Locate(std::move(checked), jobs_->PackOf(job), where));
    STASIS_TRY(taken(part.to, data));
  }
  return {};
}

Status UnitReader::Deliver(const Taken& taken, const Progress& progress, unsigned threads) const {
  assert(!selection_.zeros);
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> done{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards `failed`
  Status failed;
  auto run_next = [&]() -> bool {
    const size_t job = next++;
    if (stop || job >= jobs_->size()) return false;
    Status delivered = DeliverJob(job, taken);
    done += jobs_->BytesOf(job);
    if (delivered) return true;
    stop = true;
    std::lock_guard lock(mutex);
    if (failed) failed = std::move(delivered);
    return false;
  };
  // The caller's thread takes part, so that the work is done if no other can be started.
  const size_t workers = std::clamp<size_t>(jobs_->size(), 1, std::max(threads, 1u));
  auto helpers = StartThreads(workers - 1, [&] {
    while (run_next()) {
    }
  });
  bool cancelled = false;
  while (!cancelled && run_next()) {
    cancelled = progress && !progress(done, stored_bytes_);
    if (cancelled) stop = true;
  }
  helpers.clear();
  STASIS_TRY(std::move(failed));
  if (!cancelled && progress) cancelled = !progress(done, stored_bytes_);
  return cancelled ? Fail(Code::kCancelled, "cancelled") : Status();
}

Status UnitReader::MakeFiles(int folder_fd, const Progress& progress) const {
  std::vector<Output> files;
  std::vector<char*> outputs;
  for (const PageFile& file : page_files()) {
    STASIS_ASSIGN(Output output, Output::Make(folder_fd, file));
    outputs.push_back(output.data());
    files.push_back(std::move(output));
  }
  return Read(outputs, nullptr, progress);
}

}  // namespace stasis::store
