// The kinds of findings of `stasis check`, each with a stable name. findings.cc has the only list;
// docs/check.md describes the same kinds, which a test verifies.
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
  const char* stops;    // the features that do not work at level kCannot; empty: never kCannot
  const char* meaning;  // sentences that explain a finding that is not ok
  const char* fix;      // a command or step, unless the finding itself has a better one
};

// Kinds for the machine, each after those that it depends on, and kinds for a target.
std::span<const Kind> MachineKinds();
std::span<const Kind> TargetKinds();
// Returns the kind of that name, or the kind "other" for an unknown name.
const Kind& KindOf(std::string_view id);

struct Finding {
  const Kind* kind = nullptr;
  Level level = Level::kOk;
  std::string found;  // the observation, with figures
  std::string fix;    // empty if nothing needs fixing

  // If `fix` is empty and the level is not ok, uses the text of the kind.
  static Finding Of(std::string_view id, Level level, std::string found, std::string fix = {});
};

// Returns false if a finding is kCannot.
bool IsAble(const std::vector<Finding>& findings);

}  // namespace stasis::health
