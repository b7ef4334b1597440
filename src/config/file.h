// One configuration file: TOML, in which every key is one of the table's.
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
  size_t row;  // of Rows()
  Raw raw;     // as it stands there; Set looks at it
  int line;    // from 1
};

// What a file's text says, in the order of its lines. Wrong usage names `path`, the line, what is
// wrong there, and of an unknown key the nearest one that there is.
Result<std::vector<Entry>> ParseFile(std::string_view text, const std::string& path);

// The file's text; nullopt when there is none. A file decides which programs Stasis starts, so it
// belongs to root or to `uid`, and nobody else can write it; kPermissionDenied otherwise.
Result<std::optional<std::string>> ReadConfigFile(const std::string& path, uid_t uid);

}  // namespace stasis::config
