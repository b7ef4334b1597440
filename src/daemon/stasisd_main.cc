// stasisd: takes calls and has each done by a worker with the caller's rights. It never touches a
// GPU, a program or a user's file itself, so it can end at any moment: operations under way go on
// without it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>

#include "base/descriptor_table.h"
#include "base/file.h"
#include "base/log.h"
#include "config/load.h"
#include "config/open_paths.h"
#include "daemon/notify.h"
#include "daemon/server.h"
#include "metrics/exporter.h"
#include "service/worker_rights.h"

namespace stasis::daemon {
namespace {

// Blocked in every thread; a worker gets them back by its exec.
Result<UniqueFd> CatchSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return FailErrno(errno, "signalfd");
  return fd;
}

// `file`: where it goes when the configuration names none; empty: stderr.
Status OpenLog(const config::Settings& settings, const std::string& file) {
  log::Options options;
  options.program = "stasisd";
  options.level = log::LevelNamed(settings.daemon_log_level);
  options.file = settings.daemon_log_file.empty() ? file : settings.daemon_log_file;
  options.max_bytes = settings.daemon_log_bytes;
  return Annotate(log::Open(options), "open the daemon's log");
}

// After a connection that could not be accepted: it is still there, and so is what was short.
constexpr int kPauseMs = 500;

// In a thread of its own: a scraper waits for nobody but the workers that look for it.
Status ServeMetrics(House& house) {
  v1::WorkerRequest ours;
  ours.set_caller(::geteuid());
  ours.set_log_level(house.settings.daemon_log_level);
  *ours.mutable_daemon_settings() = service::SettingsText(house.settings, /*trusted=*/true);
  house.usage.Remember(::geteuid(), ours);
  STASIS_ASSIGN(auto exporter, metrics::Exporter::Start(house.settings.metrics_listen, [&house] {
                  house.usage.Refresh();
                  return house.measures.Text(house.operations);
                }));
  house.metrics = exporter.release()->address();
  return {};
}

Status Serve(int ready_fd, const std::string& log_file) {
  STASIS_ASSIGN(UniqueFd signals, CatchSignals());
  STASIS_ASSIGN(config::Config config, config::Load());
  STASIS_TRY(OpenLog(config.settings, log_file));
  UniqueFd end(::eventfd(0, EFD_CLOEXEC));
  if (!end) return FailErrno(errno, "eventfd");
  // It outlives every thread that is still in a call when this process ends.
  auto& house = *new House();
  house.settings = config.settings;
  STASIS_ASSIGN(house.socket, config::DaemonSocket(config.settings));
  house.end = [fd = end.get()] {
    const uint64_t one = 1;
    (void)!::write(fd, &one, sizeof one);
  };
  STASIS_ASSIGN(auto server, Server::Start(house));
  if (!house.settings.metrics_listen.empty()) STASIS_TRY(ServeMetrics(house));
  log::Write(log::Level::kInfo, "ready",
             {{"version", std::string(STASIS_VERSION)},
              {"socket", house.socket},
              {"listen", house.listen},
              {"metrics", house.metrics}});
  Notify("READY=1\nSTATUS=ready\n");
  if (ready_fd >= 0) {
    (void)!::write(ready_fd, "ready\n", 6);
    ::close(ready_fd);
  }
  for (bool pause = false;;) {
    pollfd waits[] = {{pause ? -1 : server->listener(), POLLIN, 0},
                      {signals.get(), POLLIN, 0},
                      {end.get(), POLLIN, 0}};
    if (::poll(waits, std::size(waits), pause ? kPauseMs : -1) < 0 && errno != EINTR) {
      return FailErrno(errno, "poll");
    }
    pause = waits[0].revents != 0 && !server->Accept();
    if (waits[1].revents != 0 || waits[2].revents != 0) break;
  }
  Notify("STOPPING=1\n");
  log::Write(log::Level::kInfo, "ending; operations under way go on by themselves",
             {{"operations", uint64_t{house.operations.count()}}});
  server->Stop();
  // Its end would wait for the operations.
  (void)server.release();
  return {};
}

int Main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, [](int) {});
  // Connections of all users take descriptors; what is started for users has the limit that they
  // know.
  Worker::descriptor_limit = RaiseDescriptorLimit();
  WidenDescriptorTable();
  CLI::App app("Does what the stasis command asks for, with the rights of whoever asks.",
               "stasisd");
  int ready_fd = -1;
  app.add_option("--ready-fd", ready_fd, "Where to write a line when calls are taken")->group("");
  std::string log_file;
  app.add_option("--log-file", log_file, "Where the log goes without daemon.log_file")->group("");
  app.set_version_flag("--version", STASIS_VERSION);
  CLI11_PARSE(app, argc, argv);
  Status served = Serve(ready_fd, log_file);
  if (served) return 0;
  // Who started us by hand is told in words.
  if (ready_fd < 0 && ::isatty(STDERR_FILENO) == 0 && log::Descriptor() >= 0) {
    log::Write(log::Level::kError, "ends", log::ErrorFields(served.error()));
    return ExitCode(served.error());
  }
  std::string text = "stasisd: " + served.error().ToString() + "\n" + served.error().hint + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  return ExitCode(served.error());
}

}  // namespace
}  // namespace stasis::daemon

int main(int argc, char** argv) {
  const int code = stasis::daemon::Main(argc, argv);
  // Without the destructors of what threads may still use.
  ::_exit(code);
}
