#include "bench/restore_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/file.h"
#include "bench/choose_gpu.h"
#include "bench/plot.h"
#include "bench/restore_measure.h"
#include "bench/restore_report.h"
#include "cli/interrupts.h"
#include "gpu_state/services.h"

namespace stasis::bench {
namespace {

constexpr char kTmpfs[] = "/dev/shm";

Result<RestoreMeasurements> MeasureOn(const cli::Globals& globals, const v1::BenchRequest& request,
                                      const device::Gpu& gpu) {
  RestoreOptions options;
  options.gpu = gpu;
  options.size_bytes = request.size_bytes();
  options.rounds = request.rounds();
  options.driver_rounds = request.driver_rounds();
  options.ignore_memory = request.ignore_memory();
  STASIS_ASSIGN(const Paths paths, cli::OpenPaths(globals));
  options.disk = request.store().empty() ? paths.images() : request.store();
  options.tmpfs = kTmpfs;
  STASIS_TRY(MakeDirs(options.disk));
  options.cancelled = cli::Interrupted;
  const bool shows = !globals.quiet && ::isatty(STDERR_FILENO) != 0;
  if (shows) {
    options.progress = [](const std::string& what) {
      cli::PrintStderr(fmt::format("\r\033[K{} ...", what));
    };
  }
  auto found = MeasureRestore(options);
  if (shows) cli::PrintStderr("\r\033[K");
  return found;
}

}  // namespace

Status RunRestoreBench(cli::Globals& globals, const v1::BenchRequest& request) {
  RestoreSubject subject;
  STASIS_ASSIGN(subject.gpu, ChooseGpu(globals, request.gpu()));
  auto control = device::MakeDeviceControl(gpu_state::ControlOptionsOf(globals.settings()));
  STASIS_ASSIGN(subject.driver, control->Driver());
  STASIS_TRY(CheckPlotWritable(request.svg()));
  STASIS_ASSIGN(const RestoreMeasurements found,
                Annotate(MeasureOn(globals, request, subject.gpu), "cannot measure"));
  const nlohmann::json document = RestoreJson(subject, found);
  Status plotted;
  if (!request.svg().empty()) {
    plotted = Annotate(WritePlot(request.svg(), document), "write the plot to " + request.svg());
  }
  // Print the result even if the plot failed, because the measurements take minutes.
  cli::PrintResult(globals, RestoreText(subject, found), document);
  if (!plotted) globals.json = false;  // stdout already has the document
  STASIS_TRY(std::move(plotted));
  return cli::FinishOutput();
}

}  // namespace stasis::bench
