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
// The time limit in seconds for stopping a program, instead of CRIU's default of 10.
inline constexpr int kCriuTimeoutS = 600;

struct CriuConfig {
  std::string libdir;          // the value that CRIU uses; empty if absent
  std::optional<int> timeout;  // likewise
  std::string network_lock;    // likewise
  bool has_ours = false;       // true if the file has lines that Stasis added
  bool libdir_is_ours = false;
};

// Parses the text of the file as CRIU does: each line has one option, `#` begins a comment, and the
// last occurrence of an option counts.
CriuConfig ReadCriuConfig(const std::string& text);

// Returns the text with the lines that Stasis adds for this folder of plugins. If other lines set a
// timeout, it is kept and Stasis adds none. Returns kFailedPrecondition if other lines set another
// libdir, because CRIU loads plugins from one folder only. `path` is for messages.
Result<std::string> AddToCriuConfig(const std::string& text, const std::string& libdir,
                                    const std::string& path);
// Returns the text without the lines that Stasis added.
std::string RemoveFromCriuConfig(const std::string& text);

}  // namespace stasis::containers
