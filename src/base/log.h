// The log of the daemon and its workers: one JSON object per line. docs/logs.md describes the
// fields.
//
//   {"time":"2026-11-22T12:00:00.000Z","level":"info","program":"stasisd","pid":7,
//    <the fields of SetFields()>, "message":"...", <the fields of the line>}
//
// Each line is one write(2) of at most kMaxLineBytes, so several processes may share one pipe or
// file. Logging never blocks on a slow reader: a line that cannot be written at once is dropped and
// counted. Nothing is written before Open() is called.
//
// Safe to call from any thread, except Open() and SetFields().
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace stasis::log {

enum class Level : uint8_t { kDebug, kInfo, kWarn, kError };
std::string_view LevelName(Level level);
// Returns kInfo for an unknown name.
Level LevelNamed(std::string_view name);

inline constexpr size_t kMaxLineBytes = 4096;  // an atomic write to a pipe (PIPE_BUF)

using Value = std::variant<std::string, int64_t, uint64_t, double, bool>;
using Field = std::pair<std::string_view, Value>;
using Fields = std::vector<Field>;

struct Options {
  std::string program;
  Level level = Level::kInfo;
  int fd = 2;  // not owned
  // Replaces `fd` if set. A file that grows beyond `max_bytes` is renamed to FILE.1, replacing an
  // older FILE.1.
  std::string file;
  uint64_t max_bytes = 64u << 20;
};

// Fails if the file cannot be opened or is not a regular file.
Status Open(const Options& options);
// Sets the fields that every later line has.
void SetFields(Fields fields);

// Returns true if lines of this level are written.
bool Writes(Level level);
// Writes one line. Does nothing if the level is disabled.
void Write(Level level, std::string_view message, const Fields& fields = {});
// Returns the message, code, domain, number and hint of an error as fields.
Fields ErrorFields(const Error& error);

// Returns the descriptor that the log writes to, for a child that logs there too, or -1 if the log
// is closed.
int Descriptor();
// Returns the number of dropped lines.
uint64_t Lost();

// Formats one line with its newline. Long texts are truncated; bytes that are not UTF-8 become
// U+FFFD.
std::string Format(std::string_view head, std::string_view message, const Fields& fields);

}  // namespace stasis::log
