#include "containers/criu_config.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <vector>

namespace stasis::containers {
namespace {

constexpr char kBegin[] =
    "# `stasis container setup` wrote this; `stasis container remove` deletes it.";
constexpr char kEnd[] = "# End of the lines of Stasis.";

struct Line {
  std::string text;    // the unchanged line, with its newline
  std::string option;  // empty: a comment, or blank
  std::string value;
};

// Returns the next word of a line without quotes, as CRIU reads it. Returns an empty string at the
// end and at a comment.
std::string NextWord(const std::string& text, size_t& at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r')) ++at;
  if (at >= text.size() || text[at] == '#') return {};
  std::string word;
  const char quote = text[at] == '"' || text[at] == '\'' ? text[at++] : '\0';
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != '\0' ? c == quote : (c == ' ' || c == '\t' || c == '\r' || c == '#')) break;
    word += c;
  }
  if (quote != '\0' && at < text.size()) ++at;
  return word;
}

std::vector<Line> LinesOf(const std::string& text) {
  std::vector<Line> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find('\n', begin);
    end = end == text.npos ? text.size() : end + 1;
    Line line{text.substr(begin, end - begin), {}, {}};
    begin = end;
    const std::string content = line.text.substr(0, line.text.find('\n'));
    size_t at = 0;
    line.option = NextWord(content, at);
    line.value = NextWord(content, at);
    if (const size_t equals = line.option.find('='); equals != line.option.npos) {
      line.value = line.option.substr(equals + 1);
      line.option.resize(equals);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

bool Is(const Line& line, const char* comment) {
  return line.text.substr(0, line.text.find_last_not_of(" \t\r\n") + 1) == comment;
}

bool IsOption(const Line& line) { return line.option == "libdir" || line.option == "timeout"; }

// Calls `visit` for each line, with true for the lines that Stasis wrote: the two comments and the
// options between them. Other lines between the comments are treated as the user's.
template <class Visit>
void ForEach(const std::vector<Line>& lines, const Visit& visit) {
  bool inside = false;
  for (const Line& line : lines) {
    const bool begin = Is(line, kBegin), end = inside && Is(line, kEnd);
    visit(line, begin || end || (inside && IsOption(line)));
    inside = begin || (inside && !end);
  }
}

}  // namespace

CriuConfig ReadCriuConfig(const std::string& text) {
  CriuConfig config;
  ForEach(LinesOf(text), [&](const Line& line, bool ours) {
    config.has_ours |= ours;
    if (line.option == "libdir") {
      config.libdir = line.value;
      config.libdir_is_ours = ours;
    }
    if (line.option == "network-lock") config.network_lock = line.value;
    int seconds = 0;
    const char* end = line.value.data() + line.value.size();
    if (line.option == "timeout" &&
        std::from_chars(line.value.data(), end, seconds).ec == std::errc()) {
      config.timeout = seconds;
    }
  });
  return config;
}

std::string RemoveFromCriuConfig(const std::string& text) {
  std::string rest;
  ForEach(LinesOf(text), [&](const Line& line, bool ours) {
    if (!ours) rest += line.text;
  });
  return rest;
}

Result<std::string> AddToCriuConfig(const std::string& text, const std::string& libdir,
                                    const std::string& path) {
  std::string others = RemoveFromCriuConfig(text);
  const CriuConfig theirs = ReadCriuConfig(others);
  if (!theirs.libdir.empty() && theirs.libdir != libdir) {
    return Fail(Code::kFailedPrecondition,
                fmt::format("{} already says `libdir {}`, and CRIU loads plugins from one folder "
                            "only",
                            path, theirs.libdir),
                "delete that line if nothing needs its plugins, and run the command again");
  }
  std::string ours;
  if (theirs.libdir.empty()) ours += fmt::format("libdir {}\n", libdir);
  if (!theirs.timeout) ours += fmt::format("timeout {}\n", kCriuTimeoutS);
  if (ours.empty()) return others;
  if (!others.empty() && !others.ends_with('\n')) others += '\n';
  return fmt::format("{}{}\n{}{}\n", others, kBegin, ours, kEnd);
}

}  // namespace stasis::containers
