#include "bench/plot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"

namespace stasis::bench {
namespace {

constexpr std::chrono::seconds kPlotTimeout{60};

}  // namespace

Status CheckPlotWritable(const std::string& path) {
  if (path.empty()) return {};
  const std::string folder = std::filesystem::path(AbsolutePath(path)).parent_path();
  if (::access(folder.c_str(), W_OK) != 0) return FailErrno(errno, "write the plot to " + path);
  return {};
}

Status WritePlot(const std::string& path, const nlohmann::json& report) {
  STASIS_ASSIGN(const std::string program, LibexecProgram("stasis-plot"));
  UniqueFd input(::memfd_create("report", MFD_CLOEXEC));
  if (!input) return FailErrno(errno, "memfd_create");
  STASIS_TRY(WriteAll(input.get(), report.dump()));
  if (::lseek(input.get(), 0, SEEK_SET) != 0) return FailErrno(errno, "lseek");
  UniqueFd output(::memfd_create("plot", MFD_CLOEXEC));
  if (!output) return FailErrno(errno, "memfd_create");
  SpawnOptions spawn;
  spawn.argv = {program};
  spawn.fds = {{0, input.get()}, {1, output.get()}, {2, STDERR_FILENO}};
  STASIS_ASSIGN(Subprocess plot, Subprocess::Spawn(spawn));
  auto ended = plot.Wait(Deadline::In(kPlotTimeout));
  if (!ended) {
    plot.Kill(SIGKILL);
    (void)plot.Wait();
    return Fail(std::move(ended).error());
  }
  if (*ended != 0) {
    return Fail(Code::kUnavailable, program + " " + DescribeWaitStatus(*ended),
                "the result is complete; the plot needs python3, and `stasis bench --json` prints "
                "its data");
  }
  STASIS_ASSIGN(const std::string plot_bytes,
                ReadFile(fmt::format("/proc/self/fd/{}", output.get())));
  return WriteFileDurably(path, plot_bytes);
}

}  // namespace stasis::bench
