#include "config/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/file.h"
#include "base/size.h"

namespace stasis::config {
namespace {

constexpr double kDay = 86400;
constexpr double kMiB = 1 << 20;

// Rows in display order. docs/config.md has the same order; a test compares them.
constexpr Row kRows[] = {
    {"folders.state", Kind::kFolder, &Settings::state_dir, "", 0, 0, "", "STASIS_STATE_DIR",
     "root: /var/lib/stasis and /run/stasis; others: $XDG_STATE_HOME/stasis or "
     "~/.local/state/stasis",
     "Jobs, their logs, images, and journals of operations"},
    {"folders.run", Kind::kFolder, &Settings::run_dir, "", 0, 0, "", "STASIS_RUN_DIR",
     "run in folders.state; root: /run/stasis",
     "Journals and locks of operations: on a disk of this machine, if other machines see "
     "folders.state. `%u` stands for the user's id"},
    {"folders.images", Kind::kFolder, &Settings::image_dir, "", 0, 0, "", "STASIS_IMAGE_DIR",
     "below folders.state",
     "The store: `dump` writes images here, and commands find them here by name, unless -d is "
     "given"},
    {"folders.arena", Kind::kFolder, &Settings::arena_dir, "", 0, 0, "", "STASIS_ARENA_DIR",
     "a private tmpfs if it can be mounted; else /run or /dev/shm",
     "GPU data of suspended programs, in host memory: a folder of mode 0700 in a tmpfs"},
    {"folders.spill", Kind::kFolder, &Settings::spill_dir, "", 0, 0, "", "STASIS_SPILL_DIR",
     "host memory",
     "`suspend` saves GPU data to files in this folder, as with --spill; `--no-spill` uses host "
     "memory. `dump` uses it for GPU data that does not fit into host memory"},
    {"programs.criu", Kind::kFile, &Settings::criu, "", 0, 0, "", "STASIS_CRIU",
     "the one beside Stasis, else the one on PATH", "Path of CRIU; no other CRIU is tried", true},
    {"programs.cuda_library", Kind::kFile, &Settings::cuda_library, "", 0, 0, "",
     "STASIS_CUDA_LIBRARY", "found by the loader",
     "The driver's libcuda.so.1 for Stasis's own helpers; programs load their own", true},
    {"dump.compress", Kind::kChoice, &Settings::compress, "none", 0, 0, "none|lz4|zstd|auto",
     "STASIS_COMPRESS", "", "Compression of a dump, unless --compress is given"},
    {"dump.pack_size", Kind::kSize, &Settings::pack_bytes, "128MiB", kMiB, kMiB* kMiB, "",
     "STASIS_PACK_SIZE", "",
     "Target size of a pack file; at most one pack for each CPU is written at a time. Images share "
     "whole packs"},
    {"restore.data", Kind::kChoice, &Settings::restore_data, "direct", 0, 0, "direct|arena",
     "STASIS_RESTORE_DATA", "",
     "How `restore` loads GPU data: directly from the image, checked on the GPU, or through an "
     "arena, checked by the CPU"},
    {"criu.data", Kind::kChoice, &Settings::criu_data, "embedded", 0, 0, "embedded|reference",
     "STASIS_CRIU_DATA", "",
     "Where CRIU's plugin saves GPU data: embedded in CRIU's image folder, or in the store, with a "
     "reference in CRIU's image folder"},
    {"repository.default", Kind::kRepository, &Settings::default_repository, "", 0, 0, "",
     "STASIS_REPOSITORY", "none",
     "The repository of `image push`, `image pull` and `repo check` without -R: "
     "docs/repositories.md"},
    {"migrate.ssh", Kind::kCommand, &Settings::migrate_ssh,
     "ssh -T -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3", 0, 0, "",
     "STASIS_MIGRATE_SSH", "",
     "Command by which `stasis migrate` reaches the other host; the host and the command for it "
     "are "
     "added"},
    {"migrate.remote_command", Kind::kCommand, &Settings::migrate_remote_command, "stasis receive",
     0, 0, "", "STASIS_MIGRATE_REMOTE_COMMAND", "",
     "Command that `stasis migrate` runs on the other host"},
    {"keys.file", Kind::kFile, &Settings::key_file, "", 0, 0, "", "STASIS_KEY_FILE",
     "the credential stasis-key of systemd, else stasis-key in the state folder",
     "The master key of encrypted repositories; no other user may have access to the file"},
    {"keys.command", Kind::kCommand, &Settings::key_command, "", 0, 0, "", "STASIS_KEY_COMMAND",
     "none", "Command that prints the master key, for example from a key management service"},
    {"limits.jobs", Kind::kCount, &Settings::most_jobs, "0", 0, 1e9, "", "STASIS_LIMIT_JOBS", "",
     "Maximum number of jobs of a user, including ended ones; 0: no limit", true},
    {"limits.arena", Kind::kSize, &Settings::most_arena_bytes, "0", 0, kMiB* kMiB * 1024, "",
     "STASIS_LIMIT_ARENA", "", "Maximum host memory of a user for GPU data in arenas; 0: no limit",
     true},
    {"limits.images", Kind::kSize, &Settings::most_image_bytes, "0", 0, kMiB* kMiB * 1024, "",
     "STASIS_LIMIT_IMAGES", "",
     "Maximum size of a user's files in a store, checked when an image is written; 0: no limit",
     true},
    {"arena.reserve", Kind::kChoice, &Settings::arena_reserve, "off", 0, 0, "off|auto",
     "STASIS_ARENA_RESERVE", "",
     "auto: the daemon makes host memory ready for the first suspend of jobs while they run, as "
     "much as they have on the GPU. Read by the daemon and by `run`. See docs/guides/sharing.md"},
    {"arena.reserve_limit", Kind::kSize, &Settings::arena_reserve_bytes, "0", 0, kMiB* kMiB * 1024,
     "", "STASIS_ARENA_RESERVE_LIMIT", "",
     "Maximum host memory that arena.reserve makes ready; 0: no limit. In any case at least as "
     "much stays free as is ready. Read by the daemon"},
    {"helper.idle_s", Kind::kSeconds, &Settings::helper_idle_s, "60", 0, kDay, "",
     "STASIS_HELPER_IDLE_S", "",
     "How long an idle device helper or mover stays for the next command; 0: it ends with its "
     "command"},
    {"timeouts.phase_s", Kind::kSeconds, &Settings::phase_timeout_s, "0", 0, kDay, "",
     "STASIS_PHASE_TIMEOUT_S", "",
     "Time limit for each phase, unless --timeout is given; 0: each phase has its own limit"},
    {"timeouts.settle_s", Kind::kSeconds, &Settings::settle_timeout_s, "10", 1, kDay, "",
     "STASIS_SETTLE_TIMEOUT_S", "",
     "How long to wait for a stable driver state after a helper was killed in the driver"},
    {"timeouts.undo_s", Kind::kSeconds, &Settings::undo_timeout_s, "600", 1, kDay, "",
     "STASIS_UNDO_TIMEOUT_S", "",
     "Limit for undoing a phase; --timeout does not shorten it, because an undo may move as much "
     "data as the phase"},
    {"daemon.socket", Kind::kFile, &Settings::daemon_socket, "", 0, 0, "", "STASIS_SOCKET",
     "for root: /run/stasisd/stasisd.sock; for other users: the socket of their own daemon, or "
     "root's if they have none; if folders.state is set: STATE/run/stasisd.sock",
     "The socket of the daemon"},
    {"daemon.listen", Kind::kAddress, &Settings::daemon_listen, "", 0, 0, "", "STASIS_LISTEN",
     "no TCP",
     "HOST:PORT at which the daemon also accepts calls over TCP, from clients with a certificate"},
    {"daemon.tls_cert", Kind::kFile, &Settings::daemon_tls_cert, "", 0, 0, "", "STASIS_TLS_CERT",
     "none", "The daemon's certificate with its chain, PEM; for daemon.listen"},
    {"daemon.tls_key", Kind::kFile, &Settings::daemon_tls_key, "", 0, 0, "", "STASIS_TLS_KEY",
     "none", "The private key of that certificate, PEM; no other user may have read access"},
    {"daemon.tls_client_ca", Kind::kFile, &Settings::daemon_tls_client_ca, "", 0, 0, "",
     "STASIS_TLS_CLIENT_CA", "none",
     "The CA of the clients' certificates, PEM; a certificate's common name must be a user here"},
    {"daemon.log_level", Kind::kChoice, &Settings::daemon_log_level, "info", 0, 0,
     "debug|info|warn|error", "STASIS_DAEMON_LOG_LEVEL", "", "Minimum level that the daemon logs"},
    {"daemon.log_file", Kind::kFile, &Settings::daemon_log_file, "", 0, 0, "",
     "STASIS_DAEMON_LOG_FILE",
     "stderr (systemd stores it in its journal), or stasisd.log in the run folder after `daemon "
     "start`",
     "File for the daemon's log, one JSON object a line: docs/logs.md"},
    {"daemon.log_size", Kind::kSize, &Settings::daemon_log_bytes, "64MiB", kMiB, kMiB* kMiB, "",
     "STASIS_DAEMON_LOG_SIZE", "",
     "A log file of this size is renamed to FILE.1, which replaces the previous one"},
    {"metrics.listen", Kind::kAddress, &Settings::metrics_listen, "", 0, 0, "",
     "STASIS_METRICS_LISTEN", "none",
     "HOST:PORT at which the daemon serves metrics to Prometheus, without authentication: "
     "docs/metrics.md"},
    {"run.hide_gpus", Kind::kSwitch, &Settings::hide_gpus, "false", 0, 0, "", "STASIS_HIDE_GPUS",
     "",
     "The agent hides the GPUs that CUDA_VISIBLE_DEVICES does not name, so that a job can move to "
     "them. Not for programs with the CUDA runtime"},
    {"run.keep_gpu_files", Kind::kSwitch, &Settings::keep_gpu_files, "false", 0, 0, "",
     "STASIS_FORK_KEEPS_GPU_FILES", "",
     "Forked children of a job keep inherited GPU files open; such children cannot be dumped"},
    {"run.log_size", Kind::kSize, &Settings::log_bytes, "64MiB", 64 << 10, kMiB* kMiB, "",
     "STASIS_LOG_SIZE", "",
     "How many bytes at the end of a job's own log are kept; with `--log` everything is kept"},
    {"share.default", Kind::kChoice, &Settings::share_default, "off", 0, 0, "off|interactive|batch",
     "STASIS_SHARE", "",
     "Class of jobs of `run` without --share; off: they do not share GPUs. See "
     "docs/guides/sharing.md"},
    {"share.max_wait_s", Kind::kSeconds, &Settings::share_max_wait_s, "60", 0, kDay, "",
     "STASIS_SHARE_MAX_WAIT_S", "",
     "How long an allocation of a program that shares GPUs waits for room; then it fails. Read by "
     "the daemon"},
    {"share.host_memory", Kind::kSize, &Settings::share_host_bytes, "0", 0, kMiB* kMiB * 1024, "",
     "STASIS_SHARE_HOST_MEMORY", "",
     "Host memory for the data of suspended programs that share GPUs; 0: nine tenths of what is "
     "free. Read by the daemon"},
    {"share.gpu_spare", Kind::kSize, &Settings::share_spare_bytes, "1GiB", 0, kMiB* kMiB, "",
     "STASIS_SHARE_GPU_SPARE", "",
     "GPU memory that programs that share a GPU leave free for the contexts of a suspend and of "
     "the "
     "next program; at most a sixteenth of it. Read by the daemon"},
    {"cuda_checkpoint.toggle", Kind::kChoice, &Settings::toggle, "driver", 0, 0, "driver|suspend",
     "STASIS_TOGGLE", "",
     "What --toggle of the drop-in for cuda-checkpoint does to a running program: the driver's "
     "toggle, or `stasis suspend`"},
};

std::string Number(double value) { return fmt::format("{}", value); }

std::string Bytes(double value) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (value >= 1024 && std::fmod(value, 1024) == 0 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.0f}{}", value, kUnits[unit]);
}

// The maximum length of a value.
constexpr size_t kLongest = 4096;

std::string Quoted(const Raw& raw) {
  if (const auto* text = std::get_if<std::string>(&raw)) {
    return "'" + Printable(*text) + "'";
  }
  if (const auto* number = std::get_if<int64_t>(&raw)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&raw)) return Number(*number);
  return std::get<bool>(raw) ? "true" : "false";
}

tl::unexpected<Error> Wrong(const Row& row, const Raw& raw) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              fmt::format("is {}; it must be {}", Quoted(raw), Expected(row)));
}

// Settings are stored in line-based lists, so they must not contain control characters.
bool HasControlCharacter(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; });
}

// Accepts any text without control characters.
Result<std::string> ParseLine(const Row& row, const Raw& raw) {
  const auto* text = std::get_if<std::string>(&raw);
  if (text == nullptr || text->size() > kLongest || HasControlCharacter(*text)) {
    return Wrong(row, raw);
  }
  return *text;
}

Result<std::string> ParsePath(const Row& row, const Raw& raw, From from) {
  const auto* text = std::get_if<std::string>(&raw);
  if (text == nullptr || text->size() > kLongest || HasControlCharacter(*text)) {
    return Wrong(row, raw);
  }
  if (text->empty() || text->front() == '/') return *text;
  if (text->starts_with("~/")) {
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home != '/') {
      return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                  fmt::format("is {}, and HOME is not set", Quoted(raw)));
    }
    return home + text->substr(1);
  }
  if (from != From::kEnvironment) return Wrong(row, raw);
  return AbsolutePath(*text);
}

Result<double> ParseNumber(const Row& row, const Raw& raw, From from) {
  double value = NAN;
  if (const auto* whole = std::get_if<int64_t>(&raw)) value = static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&raw)) value = *number;
  const auto* text = std::get_if<std::string>(&raw);
  if (text != nullptr && row.kind == Kind::kSize) {
    if (*text == "0") value = 0;
    if (auto bytes = ParseSize(*text)) value = static_cast<double>(*bytes);
  } else if (text != nullptr && from != From::kFile) {
    const char* end = text->data() + text->size();
    auto [rest, error] = std::from_chars(text->data(), end, value, std::chars_format::fixed);
    if (error != std::errc() || rest != end) value = NAN;
  }
  // This comparison rejects NaN too.
  if (!(value >= row.min && value <= row.max)) return Wrong(row, raw);
  if (row.kind == Kind::kCount && value != std::floor(value)) return Wrong(row, raw);
  return value;
}

Result<bool> ParseSwitch(const Row& row, const Raw& raw, From from) {
  if (const auto* value = std::get_if<bool>(&raw)) return *value;
  const auto* text = std::get_if<std::string>(&raw);
  if (text != nullptr && from != From::kFile) {
    if (*text == "1" || *text == "true") return true;
    if (*text == "0" || *text == "false") return false;
  }
  return Wrong(row, raw);
}

std::vector<std::string> Choices(const Row& row) {
  std::vector<std::string> choices(1);
  for (const char* c = row.choices; *c != '\0'; ++c) {
    if (*c == '|') {
      choices.emplace_back();
    } else {
      choices.back() += *c;
    }
  }
  return choices;
}

Result<std::string> ParseAddress(const Row& row, const Raw& raw) {
  const auto* text = std::get_if<std::string>(&raw);
  if (text == nullptr || text->size() > 256) return Wrong(row, raw);
  if (text->empty()) return *text;
  const size_t colon = text->rfind(':');
  if (colon == std::string::npos || colon == 0) return Wrong(row, raw);
  const std::string host = text->substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string letters = bracketed ? host.substr(1, host.size() - 2) : host;
  if (letters.find_first_not_of(bracketed ? "0123456789abcdefABCDEF:.%"
                                          : "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789.-_*") != std::string::npos) {
    return Wrong(row, raw);
  }
  unsigned port = 0;
  const char* end = text->data() + text->size();
  auto [rest, error] = std::from_chars(text->data() + colon + 1, end, port);
  if (error != std::errc() || rest != end || port > 65535) return Wrong(row, raw);
  return *text;
}

Result<std::string> ParseChoice(const Row& row, const Raw& raw) {
  const auto* text = std::get_if<std::string>(&raw);
  const auto choices = Choices(row);
  if (text == nullptr || std::find(choices.begin(), choices.end(), *text) == choices.end()) {
    return Wrong(row, raw);
  }
  return *text;
}

}  // namespace

std::span<const Row> Rows() { return kRows; }

std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, 80));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return shown + (text.size() > 80 ? "…" : "");
}

Settings::Settings() {
  // A test checks that each row accepts its own default.
  for (const Row& row : kRows) (void)Set(row, std::string(row.initial), From::kDefault, *this);
}

std::string Expected(const Row& row) {
  switch (row.kind) {
    case Kind::kFolder:
    case Kind::kFile:
      return fmt::format("the path of a {} that begins with / or ~/",
                         row.kind == Kind::kFolder ? "folder" : "file");
    case Kind::kSeconds:
      return fmt::format("a number of seconds from {} to {}", Number(row.min), Number(row.max));
    case Kind::kSize:
      return fmt::format("a size from {} to {}, as in \"{}\"", Bytes(row.min), Bytes(row.max),
                         row.initial);
    case Kind::kCount:
      return fmt::format("a whole number from {:.0f} to {:.0f}", row.min, row.max);
    case Kind::kSwitch:
      return "true or false";
    case Kind::kCommand:
      return "a command line of /bin/sh";
    case Kind::kRepository:
      return "the name of a repository, or its location";
    case Kind::kAddress:
      return "HOST:PORT";
    case Kind::kChoice:
      return fmt::format("one of {}", fmt::join(Choices(row), ", "));
  }
  return "";
}

Status Set(const Row& row, const Raw& raw, From from, Settings& settings) {
  switch (row.kind) {
    case Kind::kFolder:
    case Kind::kFile: {
      STASIS_ASSIGN(settings.*std::get<std::string Settings::*>(row.member),
                    ParsePath(row, raw, from));
      return {};
    }
    case Kind::kSeconds: {
      STASIS_ASSIGN(settings.*std::get<double Settings::*>(row.member),
                    ParseNumber(row, raw, from));
      return {};
    }
    case Kind::kCount:
    case Kind::kSize: {
      STASIS_ASSIGN(double bytes, ParseNumber(row, raw, from));
      settings.*std::get<uint64_t Settings::*>(row.member) = static_cast<uint64_t>(bytes);
      return {};
    }
    case Kind::kSwitch: {
      STASIS_ASSIGN(settings.*std::get<bool Settings::*>(row.member), ParseSwitch(row, raw, from));
      return {};
    }
    case Kind::kRepository:
    case Kind::kCommand: {
      STASIS_ASSIGN(settings.*std::get<std::string Settings::*>(row.member), ParseLine(row, raw));
      return {};
    }
    case Kind::kAddress: {
      STASIS_ASSIGN(settings.*std::get<std::string Settings::*>(row.member),
                    ParseAddress(row, raw));
      return {};
    }
    case Kind::kChoice: {
      STASIS_ASSIGN(settings.*std::get<std::string Settings::*>(row.member), ParseChoice(row, raw));
      return {};
    }
  }
  return {};
}

std::string Text(const Row& row, const Settings& settings) {
  struct Printer {
    const Row& row;
    const Settings& settings;
    std::string operator()(std::string Settings::*member) const { return settings.*member; }
    std::string operator()(double Settings::*member) const { return Number(settings.*member); }
    std::string operator()(uint64_t Settings::*member) const {
      if (row.kind == Kind::kCount) return std::to_string(settings.*member);
      return Bytes(static_cast<double>(settings.*member));
    }
    std::string operator()(bool Settings::*member) const {
      return settings.*member ? "true" : "false";
    }
  };
  return std::visit(Printer{row, settings}, row.member);
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string NearestKey(const std::string& key) {
  // Very long keys would make the comparison expensive.
  const std::string wanted = key.substr(0, 64);
  std::string nearest;
  size_t least = wanted.size() / 2 + 1;
  for (const Row& row : kRows) {
    const std::string known = row.key;
    // The user may have omitted the table's name.
    const std::string table = known.substr(0, known.find('.'));
    const std::string last = known.substr(table.size() + 1);
    const size_t distance = std::min(EditDistance(wanted, known), EditDistance(wanted, last) + 1);
    if (distance < least) {
      least = distance;
      nearest = known;
    }
    const size_t of_table = EditDistance(wanted, table);
    if (of_table > 0 && of_table < least) {
      least = of_table;
      nearest = table;
    }
  }
  return nearest;
}

}  // namespace stasis::config
