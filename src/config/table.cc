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
     "Jobs, their logs, images, and what is being done"},
    {"folders.images", Kind::kFolder, &Settings::image_dir, "", 0, 0, "", "STASIS_IMAGE_DIR",
     "below folders.state",
     "Where `dump` writes images and where they are looked for by name, without -d"},
    {"folders.arena", Kind::kFolder, &Settings::arena_dir, "", 0, 0, "", "STASIS_ARENA_DIR",
     "a tmpfs of its own, where it may be mounted; else /run or /dev/shm",
     "GPU data of suspended programs, in host memory: a folder of mode 0700 in a tmpfs"},
    {"folders.spill", Kind::kFolder, &Settings::spill_dir, "", 0, 0, "", "STASIS_SPILL_DIR",
     "host memory",
     "What `suspend` takes goes to files in this folder, as with --spill; `--no-spill` takes "
     "memory"},
    {"programs.criu", Kind::kFile, &Settings::criu, "", 0, 0, "", "STASIS_CRIU",
     "the one beside Stasis, else on PATH", "The CRIU to use, and no other", true},
    {"programs.cuda_library", Kind::kFile, &Settings::cuda_library, "", 0, 0, "",
     "STASIS_CUDA_LIBRARY", "wherever the loader finds it",
     "The driver's libcuda.so.1 for Stasis's own helpers; programs load theirs", true},
    {"dump.compress", Kind::kChoice, &Settings::compress, "none", 0, 0, "none|lz4|zstd|auto",
     "STASIS_COMPRESS", "", "Compression of what a dump writes, without --compress"},
    {"dump.pack_size", Kind::kSize, &Settings::pack_bytes, "128MiB", kMiB, kMiB* kMiB, "",
     "STASIS_PACK_SIZE", "",
     "For each so much GPU memory an image has another file, up to one for each processor; images "
     "share whole files"},
    {"limits.jobs", Kind::kCount, &Settings::most_jobs, "0", 0, 1e9, "", "STASIS_LIMIT_JOBS", "",
     "How many jobs a user may have, ended ones too; 0: as many as he likes", true},
    {"limits.arena", Kind::kSize, &Settings::most_arena_bytes, "0", 0, kMiB* kMiB * 1024, "",
     "STASIS_LIMIT_ARENA", "",
     "How much host memory a user may have for GPU data in arenas; 0: what there is", true},
    {"limits.images", Kind::kSize, &Settings::most_image_bytes, "0", 0, kMiB* kMiB * 1024, "",
     "STASIS_LIMIT_IMAGES", "",
     "How much a user's files in a folder of images may take when another is written; 0: what "
     "there "
     "is",
     true},
    {"helper.idle_s", Kind::kSeconds, &Settings::helper_idle_s, "60", 0, kDay, "",
     "STASIS_HELPER_IDLE_S", "",
     "How long the device helper and the movers stay, warm, for the next command; 0: they end with "
     "their command"},
    {"timeouts.phase_s", Kind::kSeconds, &Settings::phase_timeout_s, "0", 0, kDay, "",
     "STASIS_PHASE_TIMEOUT_S", "",
     "For any one phase of an operation, without --timeout; 0: each has its own"},
    {"timeouts.settle_s", Kind::kSeconds, &Settings::settle_timeout_s, "10", 1, kDay, "",
     "STASIS_SETTLE_TIMEOUT_S", "",
     "For the driver to come to rest after a helper of ours was lost in it"},
    {"timeouts.undo_s", Kind::kSeconds, &Settings::undo_timeout_s, "600", 1, kDay, "",
     "STASIS_UNDO_TIMEOUT_S", "",
     "For a phase to be undone; --timeout does not shorten it, since the data is as large on its "
     "way back"},
    {"daemon.socket", Kind::kFile, &Settings::daemon_socket, "", 0, 0, "", "STASIS_SOCKET",
     "root: /run/stasisd/stasisd.sock; others: their own daemon's, else root's; with folders.state "
     "STATE/run/stasisd.sock",
     "Where the daemon listens and where it is looked for"},
    {"daemon.listen", Kind::kAddress, &Settings::daemon_listen, "", 0, 0, "", "STASIS_LISTEN",
     "no TCP",
     "HOST:PORT at which the daemon takes calls over TCP too, from who shows a certificate"},
    {"daemon.tls_cert", Kind::kFile, &Settings::daemon_tls_cert, "", 0, 0, "", "STASIS_TLS_CERT",
     "none", "The daemon's certificate and those above it, PEM; for daemon.listen"},
    {"daemon.tls_key", Kind::kFile, &Settings::daemon_tls_key, "", 0, 0, "", "STASIS_TLS_KEY",
     "none", "Its key, PEM, which nobody else may read"},
    {"daemon.tls_client_ca", Kind::kFile, &Settings::daemon_tls_client_ca, "", 0, 0, "",
     "STASIS_TLS_CLIENT_CA", "none",
     "Who signs the callers' certificates, PEM; their common name is a user of this machine"},
    {"daemon.log_level", Kind::kChoice, &Settings::daemon_log_level, "info", 0, 0,
     "debug|info|warn|error", "STASIS_DAEMON_LOG_LEVEL", "",
     "What the daemon's log has, and what more"},
    {"daemon.log_file", Kind::kFile, &Settings::daemon_log_file, "", 0, 0, "",
     "STASIS_DAEMON_LOG_FILE",
     "stderr, which systemd keeps; of `daemon start` stasisd.log beside the journal",
     "Where the daemon's log goes, one JSON object a line: docs/logs.md"},
    {"daemon.log_size", Kind::kSize, &Settings::daemon_log_bytes, "64MiB", kMiB, kMiB* kMiB, "",
     "STASIS_DAEMON_LOG_SIZE", "",
     "A log file as long as this becomes FILE.1, in the place of the last"},
    {"metrics.listen", Kind::kAddress, &Settings::metrics_listen, "", 0, 0, "",
     "STASIS_METRICS_LISTEN", "none",
     "HOST:PORT at which the daemon serves its metrics to Prometheus, to whoever asks: "
     "docs/metrics.md"},
    {"run.keep_gpu_files", Kind::kSwitch, &Settings::keep_gpu_files, "false", 0, 0, "",
     "STASIS_FORK_KEEPS_GPU_FILES", "",
     "Children that a job forks keep the GPU's files that they inherit; they cannot be dumped "
     "then"},
    {"run.log_size", Kind::kSize, &Settings::log_bytes, "64MiB", 64 << 10, kMiB* kMiB, "",
     "STASIS_LOG_SIZE", "",
     "So much of the end of a job's log is kept, where `--log` names no file; what is older goes"},
    {"cuda_checkpoint.toggle", Kind::kChoice, &Settings::toggle, "driver", 0, 0, "driver|suspend",
     "STASIS_TOGGLE", "",
     "What the drop-in's --toggle of a running program is: the driver's, or `stasis suspend`"},
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
    std::string shown;
    for (char c : text->substr(0, 80)) {
      shown += static_cast<unsigned char>(c) < ' ' || c == 127 ? '?' : c;
    }
    return "'" + shown + (text->size() > 80 ? "…" : "") + "'";
  }
  if (const auto* number = std::get_if<int64_t>(&raw)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&raw)) return Number(*number);
  return std::get<bool>(raw) ? "true" : "false";
}

tl::unexpected<Error> Wrong(const Row& row, const Raw& raw) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              fmt::format("is {}; it is {}", Quoted(raw), Expected(row)));
}

Result<std::string> ParsePath(const Row& row, const Raw& raw, From from) {
  const auto* text = std::get_if<std::string>(&raw);
  if (text == nullptr || text->size() > kLongest) return Wrong(row, raw);
  // Paths are stored in line-based lists, so they must not contain control characters.
  if (std::any_of(text->begin(), text->end(), [](unsigned char c) { return c < ' ' || c == 127; }))
    return Wrong(row, raw);
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
  // Written so that NaN is rejected too.
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

// Returns the edit distance.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const Row> Rows() { return kRows; }

Settings::Settings()
    : pack_bytes(0),
      most_jobs(0),
      most_arena_bytes(0),
      most_image_bytes(0),
      helper_idle_s(0),
      phase_timeout_s(0),
      settle_timeout_s(0),
      undo_timeout_s(0),
      daemon_log_bytes(0),
      keep_gpu_files(false),
      log_bytes(0) {
  // A test checks that each row accepts its own default.
  for (const Row& row : kRows) (void)Set(row, std::string(row.initial), From::kDefault, *this);
}

std::string Expected(const Row& row) {
  switch (row.kind) {
    case Kind::kFolder:
    case Kind::kFile:
      return fmt::format("the path of a {}, from / or ~/ on",
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

std::string NearestKey(const std::string& key) {
  // Bounds the cost for very long keys.
  const std::string wanted = key.substr(0, 64);
  std::string nearest;
  size_t least = wanted.size() / 2 + 1;
  for (const Row& row : kRows) {
    const std::string known = row.key;
    // The user may have omitted the table's name.
    const std::string table = known.substr(0, known.find('.'));
    const std::string last = known.substr(table.size() + 1);
    const size_t distance = std::min(Distance(wanted, known), Distance(wanted, last) + 1);
    if (distance < least) {
      least = distance;
      nearest = known;
    }
    if (const size_t of_table = Distance(wanted, table); of_table < least) {
      least = of_table;
      nearest = table;
    }
  }
  return nearest;
}

}  // namespace stasis::config
