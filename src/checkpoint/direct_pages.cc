#include "checkpoint/direct_pages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/program_pids.h"
#include "criu/private_memory.h"
#include "store/unit_slices.h"

namespace stasis::checkpoint {
namespace {

constexpr std::string_view kCpu = "cpu/";

criu::OpenImage OpenerOf(const store::ImageReader& image) {
  return [&image](const std::string& name) -> Result<criu::ImageFile> {
    const std::string path = std::string(kCpu) + name;
    const auto& all = image.manifest().files;
    if (std::none_of(all.begin(), all.end(), [&](const auto& file) { return file.path == path; })) {
      return Fail(Code::kNotFound, "the image has no file " + path);
    }
    STASIS_ASSIGN(auto opened, image.OpenFile(path));
    return criu::ImageFile{std::move(opened.fd), opened.size_bytes};
  };
}

// The memory of one process that is left out of CRIU's files.
struct LeftOut {
  const criu::TaskMemory* task;
  std::vector<criu::MemoryRun> runs;
};

// Returns the process whose pages are in this file. A file of shared memory has none.
const LeftOut* FindUser(const std::vector<LeftOut>& all, const store::PageFile& file) {
  const LeftOut* found = nullptr;
  for (const LeftOut& one : all) {
    if (kCpu.size() + one.task->pages_name().size() != file.path.size() ||
        !file.path.ends_with(one.task->pages_name())) {
      continue;
    }
    if (found != nullptr) return nullptr;  // no version of CRIU writes such an image
    found = &one;
  }
  return found;
}

// Returns true if the runs are whole units of the file.
bool Fits(const std::vector<criu::MemoryRun>& runs, const store::PageFile& file) {
  return std::all_of(runs.begin(), runs.end(), [&](const criu::MemoryRun& run) {
    return run.offset % store::kPageBytes == 0 && run.size_bytes % store::kPageBytes == 0 &&
           run.offset <= file.size_bytes && run.size_bytes <= file.size_bytes - run.offset;
  });
}

// The threads of Write. They take processor time from other programs.
unsigned WriterThreads() { return (ProcessorCount() + 1) / 2; }

}  // namespace

Result<std::optional<DirectPages>> DirectPages::Choose(const store::ImageReader& image) {
  const store::Manifest& manifest = image.manifest();
  const uint64_t page_bytes = static_cast<uint64_t>(::getpagesize());
  auto read = criu::ReadTaskMemory(OpenerOf(image));
  // CRIU reports missing files.
  if (!read && read.error().code == Code::kNotFound) return std::nullopt;
  STASIS_ASSIGN(const auto tasks, std::move(read));
  std::vector<LeftOut> all;
  for (const criu::TaskMemory& task : tasks) {
    all.push_back({&task, criu::ChooseRuns(task, tasks, page_bytes)});
  }
  std::vector<Run> runs;
  std::vector<store::PageFile> files, outside;
  std::map<std::string, std::string> pagemaps;
  uint64_t bytes = 0;
  for (const store::PageFile& file : manifest.page_files) {
    const LeftOut* user = FindUser(all, file);
    if (user == nullptr || user->runs.empty() || !Fits(user->runs, file)) {
      files.push_back(file);
      continue;
    }
    std::vector<store::UnitSlice> slices;
    for (const criu::MemoryRun& run : user->runs) {
      slices.push_back({run.offset / store::kPageBytes, run.size_bytes / store::kPageBytes});
    }
    store::SlicedRuns sliced = store::SliceRuns(file.runs, slices);
    store::PageFile rest{file.path, file.size_bytes, std::move(sliced.rest)};
    for (size_t i = 0; i < slices.size(); ++i) {
      const criu::MemoryRun& run = user->runs[i];
      rest.size_bytes -= run.size_bytes;
      bytes += run.size_bytes;
      runs.push_back({run.pid, run.address});
      outside.push_back({fmt::format("{} from byte {} on", file.path, run.offset), run.size_bytes,
                         std::move(sliced.slices[i])});
    }
    files.push_back(std::move(rest));
    pagemaps[user->task->pagemap_name()] =
        criu::PagemapWithout(*user->task, user->runs, page_bytes);
  }
  if (runs.empty()) return std::nullopt;
  store::UnitReader::Selection selection;
  selection.page_files = true;
  selection.files = std::move(outside);
  STASIS_ASSIGN(auto units, store::UnitReader::Open(image, std::move(selection)));
  DirectPages pages(std::move(units), std::move(runs));
  pages.files_ = std::move(files);
  pages.pagemaps_ = std::move(pagemaps);
  pages.bytes_ = bytes;
  return pages;
}

Status DirectPages::Write(const process::ProcessTree& tree, process::MemoryWriter& writer,
                          const Progress& progress) const {
  std::map<pid_t, process::HostPid> pids;
  std::vector<process::HostPid> targets;
  for (const Run& run : runs_) {
    auto known = pids.find(run.pid);
    if (known == pids.end()) {
      store::Process process;
      process.pid = run.pid;
      STASIS_ASSIGN(const process::ProcessId id, FindRestored(process, tree));
      STASIS_TRY(writer.Open(id));
      known = pids.emplace(run.pid, id.pid).first;
    }
    targets.push_back(known->second);
  }
  auto write = [&](const store::UnitJobs::Place& place, std::string_view data) {
    return writer.Write(targets[place.output], runs_[place.output].address + place.at, data);
  };
  return units_.Deliver(write, progress, WriterThreads());
}

}  // namespace stasis::checkpoint
