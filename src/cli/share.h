// Code of the commands that start programs which share GPUs.
#pragma once

#include <string>

#include "api/client.h"
#include "cli/verb.h"

namespace stasis::cli {

// --share[=CLASS] of `run` and `manage`.
struct ShareFlag {
  std::string given;  // empty: not given

  void AddTo(App verb);
  // Returns "interactive" or "batch", or an empty string for a program that does not share (also
  // for "off").
  Result<std::string> Class() const;
};

// Connects to the daemon, which sharing needs. Returns kNotFound if none is running.
Result<api::Client> OpenShareClient(const Globals& globals);

}  // namespace stasis::cli
