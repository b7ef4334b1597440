// Reads what Slurm's commands print about a cluster, and its configuration files.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stasis::slurm_setup {

// A Slurm release, such as 22.05. A plugin works with the release it was compiled for, whatever
// the third number is.
struct Release {
  int year = 0;
  int month = 0;
  auto operator<=>(const Release&) const = default;
};
// From this one on, Slurm counts an exit within the grace time against MaxBatchRequeue.
inline constexpr Release kCountsRequeues{24, 5};
std::string ToString(const Release& release);
// Parses "22.05.8" or "22.05.8-1".
std::optional<Release> ParseRelease(std::string_view text);
// Finds the release in the file of Slurm's plugin stasis.so. Returns no value for another file.
std::optional<Release> FindRelease(std::string_view plugin);

// Settings by their names in lower case. Those that are not set are absent.
class Values {
 public:
  // Parses the output of `scontrol show config`, which includes cgroup.conf. Settings that may be
  // given several times, as "Epilog[0]" and "Epilog[1]" (24.05), become one list with commas.
  static Values OfConfig(std::string_view text);
  // Parses NAME=VALUE words of one line of `scontrol --oneliner show ...`.
  static Values OfWords(std::string_view line);

  // `name` must be in lower case. Returns an empty text if it is not set.
  std::string Get(std::string_view name) const;
  // Returns the number at the beginning of a value such as "30 sec"; no value if there is none.
  std::optional<int64_t> Number(std::string_view name) const;
  // Returns true if the value is a list of words with this one, in upper or lower case. Of a word
  // such as NAME=VALUE, NAME is compared.
  bool Lists(std::string_view name, std::string_view word) const;
  // Returns true if the value is a list of numbers and ranges ("70-80,99") with this number.
  bool HasNumber(std::string_view name, int64_t number) const;
  bool empty() const { return values_.empty(); }
  void Set(std::string_view name, std::string_view value);

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// Returns the lines of a text that are not empty.
std::vector<std::string_view> LinesOf(std::string_view text);

// A line of plugstack.conf.
struct PluginLine {
  bool is_required = false;
  std::string path;
  std::vector<std::string> arguments;

  // Returns VALUE of an argument NAME=VALUE, or an empty text.
  std::string Argument(std::string_view name) const;
};
struct PlugStack {
  std::vector<PluginLine> plugins;
  std::vector<std::string> includes;  // patterns of other files
};
PlugStack ParsePlugStack(std::string_view text);

}  // namespace stasis::slurm_setup
