// stasisd: accepts calls and starts a worker with the caller's credentials for each. It never
// accesses a GPU, a program or a user's file itself, so it can end at any moment: operations in
// progress continue without it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>

#include "api/criu_listener.h"
#include "api/daemon_server.h"
#include "api/metrics_exporter.h"
#include "api/service_manager.h"
#include "api/worker_credentials.h"
#include "base/descriptor_table.h"
#include "base/file.h"
#include "base/log.h"
#include "config/load.h"
#include "config/open_paths.h"

namespace stasis::api {
namespace {

// Blocks the signals in every thread; they are unblocked when a worker is spawned.
Result<UniqueFd> CatchSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return FailErrno(errno, "signalfd");
  return fd;
}

// `file` is the log's path if the configuration names none. If both are empty, stderr is the log.
Status OpenLog(const config::Settings& settings, const std::string& file) {
  log::Options options;
  options.program = "stasisd";
  options.level = log::LevelNamed(settings.daemon_log_level);
  options.file = settings.daemon_log_file.empty() ? file : settings.daemon_log_file;
  options.max_bytes = settings.daemon_log_bytes;
  return Annotate(log::Open(options), "open the daemon's log");
}

// Pause after an accept that failed for lack of descriptors. The connection is still waiting, so
// without the pause the daemon would retry at once.
constexpr int kPauseMs = 500;

// Serves metrics in a background thread, so that scrapes and calls do not delay each other.
Status ServeMetrics(DaemonContext& daemon) {
  daemon.usage.Add(::geteuid(), OwnWork(daemon.settings));
  STASIS_ASSIGN(auto exporter, MetricsExporter::Start(daemon.settings.metrics_listen, [&daemon] {
                  daemon.usage.Refresh();
                  daemon.share->Publish();
                  return daemon.metrics.Text(daemon.operations);
                }));
  daemon.metrics_address = exporter.release()->address();
  return {};
}

Status Serve(int ready_fd, const std::string& log_file) {
  STASIS_ASSIGN(UniqueFd signals, CatchSignals());
  STASIS_ASSIGN(config::Config config, config::Load());
  STASIS_TRY(OpenLog(config.settings, log_file));
  UniqueFd end(::eventfd(0, EFD_CLOEXEC));
  if (!end) return FailErrno(errno, "eventfd");
  // Never destroyed: threads may still be in a call when this process ends.
  auto& daemon = *new DaemonContext();
  daemon.settings = config.settings;
  STASIS_ASSIGN(daemon.socket_path, config::DaemonSocket(config.settings));
  daemon.stop = [fd = end.get()] {
    const uint64_t one = 1;
    (void)!::write(fd, &one, sizeof one);
  };
  STASIS_ASSIGN(auto server, DaemonServer::Start(daemon));
  STASIS_ASSIGN(auto criu, CriuListener::Start(daemon));
  if (!daemon.settings.metrics_listen.empty()) STASIS_TRY(ServeMetrics(daemon));
  log::Write(log::Level::kInfo, "ready",
             {{"version", std::string(STASIS_VERSION)},
              {"socket", daemon.socket_path},
              {"listen", daemon.listen_address},
              {"metrics", daemon.metrics_address}});
  NotifyServiceManager("READY=1\nSTATUS=ready\n");
  if (ready_fd >= 0) {
    (void)!::write(ready_fd, "ready\n", 6);
    ::close(ready_fd);
  }
  for (bool pause = false;;) {
    pollfd waits[] = {{pause ? -1 : server->listener(), POLLIN, 0},
                      {signals.get(), POLLIN, 0},
                      {end.get(), POLLIN, 0},
                      {pause ? -1 : criu->listener(), POLLIN, 0}};
    if (::poll(waits, std::size(waits), pause ? kPauseMs : -1) < 0 && errno != EINTR) {
      return FailErrno(errno, "poll");
    }
    pause = waits[0].revents != 0 && !server->Accept();
    if (waits[3].revents != 0 && !criu->Accept()) pause = true;
    if (waits[1].revents != 0 || waits[2].revents != 0) break;
  }
  NotifyServiceManager("STOPPING=1\n");
  log::Write(log::Level::kInfo, "ending; operations in progress continue by themselves",
             {{"operations", uint64_t{daemon.operations.count()}}});
  server->Stop();
  criu->Stop();
  // Not destroyed, because the destructors would wait for the operations.
  (void)server.release();
  (void)criu.release();
  return {};
}

int Main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, [](int) {});
  // The daemon needs many descriptors for connections. Jobs get the limit that the daemon was
  // started with.
  Worker::SetDescriptorLimit(RaiseDescriptorLimit());
  WidenDescriptorTable();
  CLI::App app("Runs the operations of the stasis command with the rights of the calling user.",
               "stasisd");
  int ready_fd = -1;
  app.add_option("--ready-fd", ready_fd, "Descriptor that gets a line when the daemon is ready")
      ->group("");
  std::string log_file;
  app.add_option("--log-file", log_file, "Log file if daemon.log_file is not set")->group("");
  app.set_version_flag("--version", STASIS_VERSION);
  CLI11_PARSE(app, argc, argv);
  Status served = Serve(ready_fd, log_file);
  if (served) return 0;
  // If a user started the daemon in a terminal, the error is printed as text.
  if (ready_fd < 0 && ::isatty(STDERR_FILENO) == 0 && log::Descriptor() >= 0) {
    log::Write(log::Level::kError, "ends", log::ErrorFields(served.error()));
    return ExitCode(served.error());
  }
  std::string text = "stasisd: " + served.error().ToString() + "\n" + served.error().hint + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  return ExitCode(served.error());
}

}  // namespace
}  // namespace stasis::api

int main(int argc, char** argv) {
  int code = 1;
  try {
    code = stasis::api::Main(argc, argv);
  } catch (const std::exception& e) {  // no memory
    std::fprintf(stderr, "stasisd: %s\n", e.what());
  }
  // Skips destructors of objects that threads may still use.
  ::_exit(code);
}
