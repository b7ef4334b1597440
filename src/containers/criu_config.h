// CRIU's configuration file (/etc/criu/default.conf), which every caller's CRIU reads. Stasis adds
// two lines between two comments, and changes nothing else:
//
//   # `stasis container setup` wrote this; `stasis container remove` deletes it.
//   libdir /opt/stasis/lib/stasis/criu
//   timeout 600
//   # End of the lines of Stasis.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace stasis::containers {

inline constexpr char kCriuConfig[] = "/etc/criu/default.conf";
// A program whose tree takes more than CRIU's usual 10 s to stop is not given up.
inline constexpr int kCriuTimeoutS = 600;

struct CriuConfig {
  std::string libdir;          // the value that CRIU uses; empty if none
  std::optional<int> timeout;  // likewise
  bool has_ours = false;       // the lines of Stasis are there
  bool libdir_is_ours = false;
};

// Reads the settings of the file's text as CRIU does: one option a line, `#` begins a comment, and
// the last one of a name counts.
CriuConfig ReadCriuConfig(const std::string& text);

// Returns the text with the lines of Stasis for this folder of plugins. A timeout of somebody else
// is kept in the place of ours. kFailedPrecondition if another libdir stands there: CRIU loads
// plugins from one folder only. `path` is for messages.
Result<std::string> AddToCriuConfig(const std::string& text, const std::string& libdir,
                                    const std::string& path);
// Returns the text without the lines of Stasis.
std::string RemoveFromCriuConfig(const std::string& text);

}  // namespace stasis::containers
