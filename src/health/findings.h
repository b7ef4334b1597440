// The kinds of findings of `stasis check`, each with a stable name. findings.cc has the list; a
// test verifies that docs/check.md describes the same kinds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stasis::health {

enum class Level : uint8_t {
  kOk,
  kNote,     // information only
  kWarning,  // works, but slower or with the stated risk
  kCannot,   // a feature named by the kind does not work: exit code 5
};
std::string_view LevelName(Level level);  // "ok", "note", "warning", "cannot"

struct Kind {
  const char* id;
  const char* about;    // the subject of the check
  const char* stops;    // features that do not work at level kCannot; empty if never kCannot
  const char* meaning;  // explains a finding that is not ok
  const char* fix;      // the default for Finding::fix
};

// Return the kinds for the machine, each after those that it depends on, and the kinds for a
// target.
std::span<const Kind> MachineKinds();
std::span<const Kind> TargetKinds();
// Returns the kind with this id, or the kind "other" for an unknown id.
const Kind& KindOf(std::string_view id);

struct Finding {
  const Kind* kind = nullptr;
  Level level = Level::kOk;
  std::string found;  // the observation, with figures
  std::string fix;    // empty if nothing needs fixing

  // If `fix` is empty and the level is a warning or kCannot, uses the fix of the kind.
  static Finding Of(std::string_view id, Level level, std::string found, std::string fix = {});
};

// Returns false if a finding is kCannot.
bool IsAble(const std::vector<Finding>& findings);

}  // namespace stasis::health
