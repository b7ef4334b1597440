// Is this machine able? Each finding says what was looked at, what it means, and the command that
// mends it.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "device/device_control.h"

namespace stasis::health {

enum class Verdict : uint8_t {
  kGood,
  kNote,  // works, with a limit that is said
  kBad,   // something does not work
};

struct Finding {
  std::string subject;  // "CRIU", "driver", ...
  Verdict verdict = Verdict::kGood;
  std::string found;   // what is there
  std::string remedy;  // a command or a step; empty when there is nothing to mend
  // What cannot be done with it, when it is bad: "dump and restore", "everything that needs a GPU".
  std::string stops;
};

// In the order in which things depend on each other. Takes a second or so: it starts CRIU and the
// device helper.
std::vector<Finding> CheckMachine(const Paths& paths, device::DeviceControl& device);

// True when nothing is bad.
bool AllGood(const std::vector<Finding>& findings);

}  // namespace stasis::health
