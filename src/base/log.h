// What the daemon and its workers say of what they do: one JSON object a line. docs/logs.md names
// the fields.
//
//   {"time":"2026-11-22T12:00:00.000Z","level":"info","program":"stasisd","pid":7,
//    <the fields of SetFields()>, "message":"...", <the fields of the line>}
//
// A line is one write(2) of at most kMaxLineBytes, so that several processes may write to one pipe
// or file. Nobody waits for a reader: what cannot be written at once is lost, and counted. Of a
// process that has not called Open() nothing is written.
//
// Threads: any, but for Open() and SetFields().
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
// kInfo for a name that there is not.
Level LevelNamed(std::string_view name);

inline constexpr size_t kMaxLineBytes = 4096;  // what a pipe takes in one piece

using Value = std::variant<std::string, int64_t, uint64_t, double, bool>;
using Field = std::pair<std::string_view, Value>;
using Fields = std::vector<Field>;

struct Options {
  std::string program;
  Level level = Level::kInfo;
  int fd = 2;  // stays the caller's
  // Instead of `fd`. When it is longer than `max_bytes` it becomes FILE.1, the one before goes.
  std::string file;
  uint64_t max_bytes = 64u << 20;
};

// The error: the file cannot be opened, or is not a plain file.
Status Open(const Options& options);
// Of every line from here on.
void SetFields(Fields fields);

bool Writes(Level level);
void Write(Level level, std::string_view message, const Fields& fields = {});
// What is said of an error: its message, code, domain, number and hint.
Fields ErrorFields(const Error& error);

// Where it goes now, for a child that writes there too; -1: nowhere.
int Descriptor();
// Lines that were lost.
uint64_t Lost();

// One line, with its newline. Texts that are too long are cut; bytes that are not UTF-8 become the
// replacement character.
std::string Format(std::string_view head, std::string_view message, const Fields& fields);

}  // namespace stasis::log
