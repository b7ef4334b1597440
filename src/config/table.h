// The table of all settings. What reads them, checks them, shows them and documents them walks it.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "config/settings.h"

namespace stasis::config {

enum class Kind : uint8_t {
  kFolder,   // a path: absolute, or from "~/" on; of a variable also a relative one
  kFile,     // the same
  kSeconds,  // a number, whole or not
  kSize,     // bytes, in the words of ParseSize; a bare number is bytes
  kCount,    // a whole number
  kSwitch,   // true or false
  kChoice,   // a word of a list
  kAddress,  // HOST:PORT; an IPv6 address in brackets
};

// Where a value is kept; the kind says which of these it is.
using Member = std::variant<std::string Settings::*, double Settings::*, uint64_t Settings::*,
                            bool Settings::*>;

struct Row {
  const char* key;  // "mover.idle_s": the table in the file, and the key in it
  Kind kind;
  Member member;
  // The text of the value by default. An empty path is the place that `unset` names.
  const char* initial;
  double min, max;      // of seconds and bytes
  const char* choices;  // "none|lz4", of a choice
  const char* variable;
  const char* unset;
  const char* meaning;  // one line
  // Not the caller's to say when we have more rights than he has: see DropUntrusted in load.h.
  bool trusted = false;
};

std::span<const Row> Rows();

// What a row's value may be: "a number of seconds from 0 to 86400".
std::string Expected(const Row& row);

// A value as it stands in a file or in a variable, before it is looked at.
using Raw = std::variant<std::string, int64_t, double, bool>;

// Who wrote it: in a variable all is text, and a path may be relative to where the user is.
enum class From : uint8_t { kDefault, kFile, kEnvironment };

// Checks `raw` and puts it into `settings`; else they stay as they are, and the error (wrong usage)
// says what the value is and what it may be: "is 'soon'; it is a number of seconds from 0 to
// 86400".
Status Set(const Row& row, const Raw& raw, From from, Settings& settings);

// As a user would write it, empty for a path that is not set.
std::string Text(const Row& row, const Settings& settings);

// The key, or the table of keys, that was most likely meant by one that there is not; empty when
// none is near.
std::string NearestKey(const std::string& key);

}  // namespace stasis::config
