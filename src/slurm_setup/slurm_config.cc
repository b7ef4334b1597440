#include "slurm_setup/slurm_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace stasis::slurm_setup {
namespace {

constexpr std::string_view kBlank = " \t\r";
// In the file of the plugin, followed by SLURM_VERSION_NUMBER, such as 0x160508.
constexpr std::string_view kMark = "stasis: compiled for Slurm 0x";

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower;
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Parses the number at the beginning of `text`, and removes it.
std::optional<int64_t> TakeNumber(std::string_view& text, int base = 10) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

std::string ToString(const Release& release) {
  return fmt::format("{}.{:02}", release.year, release.month);
}

std::optional<Release> ParseRelease(std::string_view text) {
  const auto year = TakeNumber(text);
  if (!year || !text.starts_with('.')) return std::nullopt;
  text.remove_prefix(1);
  const auto month = TakeNumber(text);
  if (!month || *year > 99 || *month > 12) return std::nullopt;
  return Release{static_cast<int>(*year), static_cast<int>(*month)};
}

std::optional<Release> FindRelease(std::string_view plugin) {
  const size_t at = plugin.find(kMark);
  if (at == plugin.npos) return std::nullopt;
  plugin.remove_prefix(at + kMark.size());
  const auto number = TakeNumber(plugin, 16);
  if (!number) return std::nullopt;
  return Release{static_cast<int>(*number >> 16 & 0xff), static_cast<int>(*number >> 8 & 0xff)};
}

std::vector<std::string_view> LinesOf(std::string_view text) { return Split(text, "\n"); }

void Values::Set(std::string_view name, std::string_view value) {
  if (value.empty() || value == "(null)" || value == "N/A") return;
  values_.insert_or_assign(Lower(name), std::string(value));
}

Values Values::OfConfig(std::string_view text) {
  Values values;
  for (const std::string_view line : LinesOf(text)) {
    const size_t equals = line.find('=');
    if (equals == line.npos) continue;
    std::string_view name = Trim(line.substr(0, equals));
    std::string value(Trim(line.substr(equals + 1)));
    if (const size_t bracket = name.find('['); bracket != name.npos && name.ends_with(']')) {
      name = name.substr(0, bracket);
      const std::string before = values.Get(Lower(name));
      if (!before.empty()) value = before + "," + value;
    }
    values.Set(name, value);
  }
  return values;
}

Values Values::OfWords(std::string_view line) {
  Values values;
  for (const std::string_view word : Split(line, kBlank)) {
    const size_t equals = word.find('=');
    if (equals != word.npos) values.Set(word.substr(0, equals), word.substr(equals + 1));
  }
  return values;
}

std::string Values::Get(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

std::optional<int64_t> Values::Number(std::string_view name) const {
  const std::string value = Get(name);
  std::string_view text = value;
  return TakeNumber(text);
}

bool Values::Lists(std::string_view name, std::string_view word) const {
  const std::string value = Lower(Get(name));
  const auto words = Split(value, ",");
  return std::any_of(words.begin(), words.end(), [&](std::string_view one) {
    return one.substr(0, one.find('=')) == Lower(word);
  });
}

bool Values::HasNumber(std::string_view name, int64_t number) const {
  const std::string value = Get(name);
  for (std::string_view part : Split(value, ",")) {
    const auto first = TakeNumber(part);
    auto last = first;
    if (part.starts_with('-')) {
      part.remove_prefix(1);
      last = TakeNumber(part);
    }
    if (first && last && *first <= number && number <= *last) return true;
  }
  return false;
}

std::string PluginLine::Argument(std::string_view name) const {
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals != argument.npos && argument.substr(0, equals) == name) {
      return argument.substr(equals + 1);
    }
  }
  return "";
}

PlugStack ParsePlugStack(std::string_view text) {
  PlugStack stack;
  for (const std::string_view line : LinesOf(text)) {
    const auto words = Split(line.substr(0, line.find('#')), kBlank);
    if (words.size() < 2) continue;
    const std::string kind = Lower(words[0]);
    if (kind == "include") stack.includes.emplace_back(words[1]);
    if (kind != "required" && kind != "optional") continue;
    PluginLine plugin{kind == "required", std::string(words[1]), {}};
    plugin.arguments.assign(words.begin() + 2, words.end());
    stack.plugins.push_back(std::move(plugin));
  }
  return stack;
}

}  // namespace stasis::slurm_setup
