// The table of all settings. Loading, checking, display and documentation all use it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "config/settings.h"

namespace stasis::config {

enum class Kind : uint8_t {
  kFolder,   // an absolute path or one below "~/"; an environment variable may have a relative one
  kFile,     // like kFolder
  kSeconds,  // a number, possibly with a fraction
  kSize,     // bytes, in the syntax of ParseSize; a bare number is bytes
  kCount,    // an integer
  kSwitch,   // true or false
  kChoice,   // one word of a list
  kCommand,  // a line for /bin/sh
  kRepository,  // a name or a location
  kAddress,     // HOST:PORT; an IPv6 address in brackets
};

// The field of Settings that holds the value. The row's kind determines its type.
using Member = std::variant<std::string Settings::*, double Settings::*, uint64_t Settings::*,
                            bool Settings::*>;

struct Row {
  const char* key;  // "helper.idle_s": table and key in the file
  Kind kind;
  Member member;
  // The default as text. If it is empty, `unset` describes the default.
  const char* initial;
  double min, max;      // for seconds and bytes
  const char* choices;  // for a choice, for example "none|lz4"
  const char* variable;
  const char* unset;
  const char* meaning;  // one line for help texts
  // If this process has more rights than its caller, the caller must not control this setting: see
  // DropUntrusted in load.h.
  bool trusted = false;
};

// Returns all settings in display order.
std::span<const Row> Rows();

// Describes the allowed values of a row: "a number of seconds from 0 to 86400".
std::string Expected(const Row& row);

// A value from a file or an environment variable before it is checked.
using Raw = std::variant<std::string, int64_t, double, bool>;

// The source of a value. In an environment variable all values are text, and paths may be relative.
enum class From : uint8_t { kDefault, kFile, kEnvironment };

// Checks `raw` and stores it in `settings`. On error `settings` is unchanged, and the usage error
// names the value and the allowed values: "is 'soon'; it must be a number of seconds from 0 to
// 86400".
Status Set(const Row& row, const Raw& raw, From from, Settings& settings);

// Returns the value as a user would write it; empty for an unset path.
std::string Text(const Row& row, const Settings& settings);

// Returns the start of `text` without control characters, so that an error can quote it.
std::string Printable(std::string_view text);

// Returns the number of insertions, deletions, replacements, and swaps of neighbours that turn `a`
// into `b`.
size_t EditDistance(const std::string& a, const std::string& b);

// Returns the known key or table that is most similar to the unknown `key`, or an empty string if
// none is similar.
std::string NearestKey(const std::string& key);

}  // namespace stasis::config
