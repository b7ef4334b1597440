// The programs that did not answer a survey, for example because a debugger has stopped them.
// Surveys do not ask them, so that they delay decisions about others only once. A program is asked
// again when it has answered its watch. No clock: the owner passes the time. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "sharing/table.h"

namespace stasis::sharing {

class Silences {
 public:
  // How long a program is not asked after a survey. Doubles with each survey that it does not
  // answer, because a false agent may answer its watch only, and begins anew when it has answered
  // surveys for kLongest.
  static constexpr Time kFirst = std::chrono::milliseconds(100);
  static constexpr Time kLongest = std::chrono::seconds(60);

  // The programs that the next survey must not ask.
  std::set<std::string> Lasting() const;
  // A survey has ended that did not ask `not_asked`, and in which `silent` did not answer. Returns
  // the programs that are silent since then.
  std::set<std::string> Note(const std::set<std::string>& not_asked,
                             const std::set<std::string>& silent, Time now);
  // The programs that still run are those for which `lives` holds.
  void Forget(const std::function<bool(const std::string& id)>& lives);

  // Whether the watches of a program have answered since a time; empty if it has none.
  using HasAnswered = std::function<std::optional<bool>(const std::string& id, Time since)>;
  struct Ended {
    bool any = false;          // a program is to be asked again
    std::optional<Time> next;  // the next time at which that may be so without an answer
  };
  Ended End(const HasAnswered& has_answered, Time now);

 private:
  struct Silence {
    bool lasts = false;
    Time since{0};
    Time ask_at{0};
    int times = 0;
  };
  std::map<std::string, Silence> silences_;
};

}  // namespace stasis::sharing
