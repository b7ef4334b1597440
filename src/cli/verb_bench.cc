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

namespace stasis::cli {
namespace {

// Below this size the agent leaves memory to the driver, so the two paths would not differ.
constexpr uint64_t kLeastAllocation = 1ull << 20;
constexpr uint64_t kMostAllocations = 1ull << 20;
constexpr uint64_t kDefaultAllocation = 1ull << 30;

struct BenchOptions {
  std::string size = "32GiB";
  std::vector<std::string> allocations;
  int rounds = 7;
  int driver_rounds = 2;
  std::string gpu = "0";
  std::string svg;
  bool thp = false;
  bool ignore_memory = false;
};

// Checks the options; stasis-bench looks up the GPU.
Result<v1::BenchRequest> RequestOf(const Globals& globals, const BenchOptions& options) {
  v1::BenchRequest request;
  STASIS_ASSIGN(const uint64_t size, ParseSize(options.size));
  request.set_size_bytes(size);
  for (const std::string& text : options.allocations) {
    STASIS_ASSIGN(uint64_t bytes, ParseSize(text));
    if (bytes < kLeastAllocation || bytes % sizeof(uint64_t) != 0) {
      return FailUsage("--allocation " + text + " is too small, or not a multiple of 8",
                       "the minimum is 1MiB");
    }
    if (bytes > size) {
      return FailUsage("--allocation " + text + " is more than --size " + options.size);
    }
    if (size / bytes > kMostAllocations) {
      return FailUsage(fmt::format("{} in allocations of {} exceeds the limit of {} allocations",
                                   options.size, text, kMostAllocations));
    }
    request.add_allocation_bytes(bytes);
  }
  if (options.allocations.empty()) request.add_allocation_bytes(std::min(kDefaultAllocation, size));
  request.set_rounds(options.rounds);
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
  auto verb = app.add_subcommand(
      "bench", "Measure suspend and resume on a GPU, and the driver alone for comparison");
  verb->add_option("--size", options->size, "GPU memory of the measured program (default: 32GiB)");
  verb->add_option(
          "--allocation", options->allocations,
          "Size of the program's allocations (default: 1GiB). With several sizes, separated by "
          "commas, the shared path is measured with each")
      ->delimiter(',');
  verb->add_option("--rounds", options->rounds, "Number of warm rounds (default: 7)")
      ->range(1, 1000);
  verb->add_option("--driver-rounds", options->driver_rounds,
                   "Number of rounds with the driver alone, which is slow (default: 2; 0: none)")
      ->range(0, 1000);
  verb->add_option("--gpu", options->gpu, "Index, UUID or name of the GPU (default: 0)");
  verb->add_option("--svg", options->svg, "File to write a plot to");
  verb->add_flag(
      "--thp", options->thp,
      "Measure the driver alone with transparent huge pages `madvise` and `always`; this changes "
      "the machine's setting during the measurement");
  verb->add_flag("--ignore-memory", options->ignore_memory,
                 "Continue even if host memory seems too small");
  verb->callback([=] { select([=](const Globals& globals) { return Run(globals, *options); }); });
}

}  // namespace stasis::cli
