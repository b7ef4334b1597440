// The findings of `stasis slurm check`. findings.cc has the table of checks; a test verifies that
// docs/slurm.md describes the same ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "slurm_setup/site.h"

namespace stasis::slurm_setup {

enum class Level : uint8_t { kOk, kNote, kWarning, kCannot };  // as in docs/check.md

struct Finding {
  Level level = Level::kOk;
  std::string found;  // the observation
  std::string fix;    // empty: that of the check
};

struct Check {
  const char* id;
  const char* about;    // the subject
  const char* stops;    // what does not work at level kCannot; empty if never kCannot
  const char* meaning;  // explains a finding that is not ok
  const char* fix;
  Finding (*look)(const Site& site);
  bool needs_config = true;  // skipped if Slurm's configuration cannot be read
};

std::span<const Check> Checks();

struct Judged {
  const Check* check;
  Finding finding;
};
// In the order of Checks().
std::vector<Judged> JudgeSite(const Site& site);

// KillWait in `stasis slurm config`, and the shortest time for a dump that is no warning, in
// seconds.
inline constexpr int64_t kDumpSeconds = 120;

}  // namespace stasis::slurm_setup
