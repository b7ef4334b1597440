// Parses one configuration file: TOML whose keys must all be in the table of settings.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/table.h"

namespace stasis::config {

inline constexpr size_t kMaxFileBytes = 64 << 10;

struct Entry {
  size_t row;  // index into Rows()
  Raw raw;     // the unchecked value; Set checks it
  int line;    // counted from 1
};

// Parses a file into entries in the order of its lines. A usage error names `path`, the line, the
// mistake, and for an unknown key the most similar known key.
Result<std::vector<Entry>> ParseFile(std::string_view text, const std::string& path);

// Reads the file; returns nullopt if it does not exist. The file decides which programs Stasis
// starts, so it must belong to root or to `uid` and be writable by no other user; otherwise the
// error is kPermissionDenied.
Result<std::optional<std::string>> ReadConfigFile(const std::string& path, uid_t uid);

}  // namespace stasis::config
