// What `stasis check` can find, each kind with a name that stays: findings.cc is the one list of
// them, and docs/check.md says the same (a test compares the two).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stasis::health {

enum class Level : uint8_t {
  kOk,
  kNote,     // nothing is wrong; it is worth knowing
  kWarning,  // works, but slower or with a risk that is said
  kCannot,   // something that the kind names does not work: exit code 5
};
std::string_view LevelName(Level level);  // "ok", "note", "warning", "cannot"

struct Kind {
  const char* id;
  const char* about;    // what is looked at
  const char* stops;    // what does not work while its level is kCannot; empty: it never is
  const char* meaning;  // what a finding that is not ok means; sentences
  const char* mend;     // a command or a step, where the finding itself knows no better one
};

// Of the machine, in the order in which they depend on each other, and of a target.
std::span<const Kind> MachineKinds();
std::span<const Kind> TargetKinds();
// The kind of that name; for a name that nobody knows, the one called "other".
const Kind& KindOf(std::string_view id);

struct Finding {
  const Kind* kind = nullptr;
  Level level = Level::kOk;
  std::string found;  // what is there, with its figures
  std::string mend;   // empty when there is nothing to mend

  // Without `mend`, what is not ok gets its kind's.
  static Finding Of(std::string_view id, Level level, std::string found, std::string mend = {});
};

// False when one is kCannot.
bool IsAble(const std::vector<Finding>& findings);

}  // namespace stasis::health
