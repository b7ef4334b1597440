#include "base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "base/file.h"

namespace stasis::log {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
constexpr size_t kLongestText = 2048;

struct State {
  std::mutex mutex;
  Options options;
  UniqueFd file;
  Fields fields;
  std::atomic<int> fd{-1};
  std::atomic<Level> level{Level::kInfo};
  std::atomic<uint64_t> lost{0};
};

// Never destroyed, so that threads may log until the process exits.
State& The() {
  static State& state = *new State();
  return state;
}

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Text(const Value& value, size_t longest) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return Quoted(std::string_view(*text).substr(0, longest));
  }
  if (const auto* yes = std::get_if<bool>(&value)) return *yes ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  if (const auto* number = std::get_if<uint64_t>(&value)) return std::to_string(*number);
  // A number that JSON cannot represent (NaN, infinity) is written as null.
  return nlohmann::json(std::get<double>(value)).dump();
}

std::string Now() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  ::gmtime_r(&now.tv_sec, &utc);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", text, now.tv_nsec / 1000000);
}

Result<UniqueFd> OpenLog(const std::string& path) {
  STASIS_ASSIGN(UniqueFd fd,
                stasis::Open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return FailErrno(errno, path);
  if (!S_ISREG(st.st_mode)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, path + " is not a regular file");
  }
  return fd;
}

// Rotates a file that has become too long. If this fails the file keeps growing, and no lines are
// lost.
void KeepBound(State& state) {
  struct stat st;
  if (!state.file || ::fstat(state.file.get(), &st) != 0) return;
  if (static_cast<uint64_t>(st.st_size) < state.options.max_bytes) return;
  const std::string& path = state.options.file;
  if (::rename(path.c_str(), (path + ".1").c_str()) != 0) return;
  auto fresh = OpenLog(path);
  if (!fresh) return;
  // dup3 replaces the old file under the same number, so a child that is about to inherit it gets a
  // valid descriptor.
  (void)::dup3(fresh->get(), state.file.get(), O_CLOEXEC);
}

void Put(State& state, const std::string& line) {
  const int fd = state.fd.load();
  pollfd room{fd, POLLOUT, 0};
  const bool ready = ::poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0;
  if (!ready || TEMP_FAILURE_RETRY(::write(fd, line.data(), line.size())) !=
                    static_cast<ssize_t>(line.size())) {
    ++state.lost;
  }
}

}  // namespace

std::string_view LevelName(Level level) { return kNames[static_cast<size_t>(level)]; }

Level LevelNamed(std::string_view name) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  return found == std::end(kNames) ? Level::kInfo : static_cast<Level>(found - std::begin(kNames));
}

Status Open(const Options& options) {
  State& state = The();
  std::lock_guard lock(state.mutex);
  UniqueFd file;
  if (!options.file.empty()) {
    STASIS_ASSIGN(file, OpenLog(options.file));
  }
  state.options = options;
  state.file = std::move(file);
  state.fd = state.file ? state.file.get() : options.fd;
  state.level = options.level;
  return {};
}

void SetFields(Fields fields) { The().fields = std::move(fields); }

bool Writes(Level level) { return The().fd.load() >= 0 && level >= The().level.load(); }

void Write(Level level, std::string_view message, const Fields& fields) {
  if (!Writes(level)) return;
  State& state = The();
  const std::string begin =
      fmt::format(R"("time":"{}","level":"{}","program":{},"pid":{})", Now(), LevelName(level),
                  Quoted(state.options.program), ::getpid());
  Fields all = state.fields;
  all.insert(all.end(), fields.begin(), fields.end());
  const std::string line = Format(begin, message, all);
  std::lock_guard lock(state.mutex);
  KeepBound(state);
  Put(state, line);
}

Fields ErrorFields(const Error& error) {
  Fields fields = {{"error", error.ToString()},
                   {"code", std::string(CodeName(error.code))},
                   {"domain", std::string(DomainName(error.domain))}};
  if (error.raw != 0) fields.emplace_back("raw", error.raw);
  if (!error.hint.empty()) fields.emplace_back("hint", error.hint);
  return fields;
}

int Descriptor() { return The().fd.load(); }

uint64_t Lost() { return The().lost.load(); }

std::string Format(std::string_view head, std::string_view message, const Fields& fields) {
  // One byte may take six after escaping, so a bound on the input does not bound the line.
  for (size_t longest = kLongestText;; longest /= 2) {
    std::string line = fmt::format("{{{},\"message\":{}", head, Quoted(message.substr(0, longest)));
    for (const auto& [name, value] : fields) {
      line += fmt::format(",{}:{}", Quoted(name), Text(value, longest));
    }
    line += "}\n";
    if (line.size() <= kMaxLineBytes || longest == 0) return line;
  }
}

}  // namespace stasis::log
