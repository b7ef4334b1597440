// The phases of an operation with their times: reported while it runs, and in the account at its
// end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stasis::plan {

// One line of the account.
struct PhaseReport {
  std::string name;
  double start_s = 0;  // since the start of the plan
  double seconds = 0;
  uint64_t bytes = 0;     // bytes moved; 0 if the phase moves none
  bool parallel = false;  // ran in parallel with another phase
  int depth = 0;          // 1: nested in the phase above it
  int parent = -1;        // while the plan runs: index of that phase

  double bytes_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

struct Account {
  std::string verb;
  std::vector<PhaseReport> phases;
  double total_s = 0;
};

// Callbacks for the progress of phases. bytes_total is 0 if unknown.
struct Progress {
  std::function<void(const std::string& phase)> begin;
  std::function<void(const std::string& phase, uint64_t bytes_done, uint64_t bytes_total)> bytes;
  std::function<void(const PhaseReport& report)> end;
};

}  // namespace stasis::plan
