#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/size.h"
#include "cli/operation.h"
#include "cli/transfer.h"

namespace stasis::cli {
namespace {

// Below this size the agent leaves memory to the driver, so the two paths would not differ.
constexpr uint64_t kLeastAllocation = 1ull << 20;
constexpr uint64_t kMostAllocations = 1ull << 20;
constexpr uint64_t kDefaultAllocation = 1ull << 30;
constexpr uint64_t kLeastRemoteBytes = 1ull << 20;

constexpr char kDefaultSize[] = "32GiB";
constexpr int kDefaultRounds = 7;
// The defaults with --remote.
constexpr char kDefaultRemoteSize[] = "8GiB";
constexpr int kDefaultRemoteRounds = 5;
// The defaults with --restore.
constexpr char kDefaultRestoreSize[] = "8GiB";
constexpr int kDefaultRestoreRounds = 3;

struct BenchOptions {
  std::string size;
  std::vector<std::string> allocations;
  int rounds = 0;
  int driver_rounds = 2;
  std::string gpu = "0";
  std::string svg;
  bool thp = false;
  bool ignore_memory = false;
  bool restore = false;
  RepositoryFlags remote;
  std::string folder;  // folder of the local image
};

Status SetAllocations(const BenchOptions& options, v1::BenchRequest& request) {
  const uint64_t size = request.size_bytes();
  for (const std::string& text : options.allocations) {
    STASIS_ASSIGN(uint64_t bytes, ParseSize(text));
    if (bytes < kLeastAllocation || bytes % sizeof(uint64_t) != 0) {
      return FailUsage("--allocation " + text + " is too small, or not a multiple of 8",
                       "the minimum is 1MiB");
    }
    if (bytes > size) {
      return FailUsage(fmt::format("--allocation {} is more than --size {}", text,
                                   options.size.empty() ? kDefaultSize : options.size));
    }
    if (size / bytes > kMostAllocations) {
      return FailUsage(fmt::format("{} in allocations of {} exceeds the limit of {} allocations",
                                   options.size.empty() ? kDefaultSize : options.size, text,
                                   kMostAllocations));
    }
    request.add_allocation_bytes(bytes);
  }
  if (options.allocations.empty()) request.add_allocation_bytes(std::min(kDefaultAllocation, size));
  return {};
}

Status SetRemote(const BenchOptions& options, v1::BenchRequest& request) {
  if (options.remote.name.empty()) {
    if (!options.remote.plain && (options.folder.empty() || options.restore)) return {};
    return FailUsage(
        "--plain is for a repository: name it with --remote; --dir is for --remote and --restore");
  }
  STASIS_ASSIGN(*request.mutable_remote(), options.remote.ToMessage());
  if (!options.folder.empty()) request.set_store(AbsolutePath(options.folder));
  const uint64_t size = request.size_bytes();
  if (size >= kLeastRemoteBytes && size % sizeof(uint64_t) == 0) return {};
  return FailUsage("--size " + options.size + " is too small, or not a multiple of 8",
                   "the minimum with --remote is 1MiB");
}

// Checks the options; stasis-bench looks up the GPU and the repository.
Result<v1::BenchRequest> RequestOf(const Globals& globals, const BenchOptions& options) {
  v1::BenchRequest request;
  const bool is_remote = !options.remote.name.empty();
  STASIS_ASSIGN(const uint64_t size, ParseSize(!options.size.empty() ? options.size
                                               : is_remote           ? kDefaultRemoteSize
                                               : options.restore     ? kDefaultRestoreSize
                                                                     : kDefaultSize));
  request.set_size_bytes(size);
  STASIS_TRY(SetRemote(options, request));
  if (!is_remote && !options.restore) STASIS_TRY(SetAllocations(options, request));
  request.set_rounds(options.rounds > 0 ? options.rounds
                     : is_remote        ? kDefaultRemoteRounds
                     : options.restore  ? kDefaultRestoreRounds
                                        : kDefaultRounds);
  request.set_restore(options.restore);
  if (options.restore && !options.folder.empty()) request.set_store(AbsolutePath(options.folder));
  request.set_driver_rounds(options.driver_rounds);
  request.set_gpu(options.gpu);
  if (!options.svg.empty()) request.set_svg(AbsolutePath(options.svg));
  request.set_huge_pages(options.thp);
  request.set_ignore_memory(options.ignore_memory);
  request.set_json(globals.json);
  request.set_quiet(globals.quiet);
  return request;
}

// Replaces this process with stasis-bench.
Outcome Run(const Globals& globals, const BenchOptions& options) {
  STASIS_ASSIGN(const v1::BenchRequest request, RequestOf(globals, options));
  STASIS_ASSIGN(const std::string program, LibexecProgram("stasis-bench"));
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.PrintToString(request, &text);
  ::execl(program.c_str(), program.c_str(), text.c_str(), nullptr);
  return FailErrno(errno, "start " + program);
}

}  // namespace

void RegisterBench(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<BenchOptions>();
  auto verb = app.add_subcommand("bench",
                                 "Measure suspend and resume on a GPU, dump and restore, or push "
                                 "and restore with a repository");
  verb->add_option(
      "--size", options->size,
      "GPU memory of the measured program (default: 32GiB; with --remote and --restore: "
      "8GiB)");
  auto allocation = verb->add_option(
      "--allocation", options->allocations,
      "Size of the program's allocations (default: 1GiB). With several sizes, separated by "
      "commas, the shared path is measured with each");
  allocation->delimiter(',');
  verb->add_option("--rounds", options->rounds,
                   "Number of warm rounds (default: 7; with --remote: 5; with --restore: 3)")
      ->range(1, 1000);
  auto driver_rounds = verb->add_option(
      "--driver-rounds", options->driver_rounds,
      "Number of rounds with the driver alone, which is slow (default: 2; 0: none)");
  driver_rounds->range(0, 1000);
  auto gpu = verb->add_option("--gpu", options->gpu, "Index, UUID or name of the GPU (default: 0)");
  auto svg = verb->add_option("--svg", options->svg, "File to write a plot to");
  auto thp = verb->add_flag(
      "--thp", options->thp,
      "Measure the driver alone with transparent huge pages `madvise` and `always`; this changes "
      "the machine's setting during the measurement");
  auto ignore_memory = verb->add_flag("--ignore-memory", options->ignore_memory,
                                      "Continue even if host memory seems too small");
  auto remote = verb->add_option(
      "--remote", options->remote.name,
      "Instead of a GPU, measure push and restore with a repository, and plain PUTs and GETs for "
      "comparison; REPO is a name (`stasis repo ls`), s3://BUCKET/PREFIX or a folder");
  remote->option_text("REPO");
  auto restore = verb->add_flag(
      "--restore", options->restore,
      "Instead of suspend and resume, measure dump and restore from the page cache, from memory "
      "and from the disk, to the program's first answer");
  for (Option other : {allocation, driver_rounds, gpu, svg, thp, ignore_memory, restore}) {
    remote->excludes(other);
  }
  restore->excludes(allocation);
  restore->excludes(thp);
  verb->add_flag("--plain", options->remote.plain,
                 "With a location: the repository there is not encrypted");
  verb->add_option("-d,--dir", options->folder,
                   "With --remote: the folder for the local image; with --restore: the one on the "
                   "disk (default: folders.images)")
      ->option_text("DIR");
  verb->callback([=] { select([=](const Globals& globals) { return Run(globals, *options); }); });
}

}  // namespace stasis::cli
