#include "config/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/file.h"

namespace stasis::config {
namespace {

constexpr std::string_view kBare =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
constexpr std::string_view kBlank = " \t";

std::string_view Trim(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

// Returns true if the text is blank or a comment.
bool IsEnd(std::string_view text) {
  text = Trim(text);
  return text.empty() || text.front() == '#';
}

// Parses a quoted string at the start of `text`, and removes it from `text`.
std::optional<Raw> ParseString(std::string_view& text) {
  const char quote = text.front();
  std::string value;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      text.remove_prefix(i + 1);
      return Raw(value);
    }
    if (quote == '"' && text[i] == '\\') {
      constexpr std::string_view kEscapes = "\"\\ntr", kMeanings = "\"\\\n\t\r";
      const size_t known = ++i < text.size() ? kEscapes.find(text[i]) : kEscapes.npos;
      if (known == kEscapes.npos) return std::nullopt;
      value += kMeanings[known];
    } else {
      value += text[i];
    }
  }
  return std::nullopt;
}

template <class Number>
std::optional<Raw> ParseNumber(std::string_view word) {
  Number number{};
  auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return Raw(number);
}

// Parses a string, number or boolean, which may be followed by a comment.
std::optional<Raw> ParseValue(std::string_view text) {
  text = Trim(text);
  std::optional<Raw> value;
  if (text.empty()) return value;
  if (text.front() == '"' || text.front() == '\'') {
    value = ParseString(text);
  } else {
    std::string_view word = text.substr(0, text.find_first_of(" \t#"));
    text.remove_prefix(word.size());
    if (word.starts_with('+')) word.remove_prefix(1);
    if (word == "true" || word == "false") {
      value = Raw(word == "true");
    } else if (value = ParseNumber<int64_t>(word); !value) {
      value = ParseNumber<double>(word);
    }
  }
  return IsEnd(text) ? value : std::nullopt;
}

bool IsTable(std::string_view name) {
  return std::any_of(Rows().begin(), Rows().end(), [&](const Row& row) {
    return std::string_view(row.key).starts_with(std::string(name) + ".");
  });
}

// Parses the lines of one file. Supports only the part of TOML that settings need: tables, and keys
// with their value on the same line.
class Parser {
 public:
  explicit Parser(const std::string& path) : path_(path) {}

  Status ParseLine(std::string_view line, int number) {
    number_ = number;
    if (std::any_of(line.begin(), line.end(),
                    [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; })) {
      return Unreadable("it has a control character");
    }
    line = Trim(line);
    if (IsEnd(line)) return {};
    return line.front() == '[' ? ParseTable(line) : ParseSetting(line);
  }
  std::vector<Entry> TakeEntries() { return std::move(entries_); }

 private:
  Status ParseTable(std::string_view line) {
    const size_t end = line.find_first_not_of(kBare, 1);
    if (end <= 1 || end == line.npos || line[end] != ']' || !IsEnd(line.substr(end + 1))) {
      return Unreadable("a table is written as [helper]");
    }
    table_ = line.substr(1, end - 1);
    return IsTable(table_) ? Status() : Unknown(table_);
  }

  Status ParseSetting(std::string_view line) {
    const size_t equals = line.find('=');
    if (equals == line.npos) return Unreadable("a setting is written as key = value");
    std::string key(Trim(line.substr(0, equals)));
    if (key.find_first_not_of(std::string(kBare) + ".") != key.npos) {
      return Unreadable("a key consists of letters, digits, '_', '-' and '.'");
    }
    if (!table_.empty()) key = table_ + "." + key;
    if (IsTable(key))
      return Mistake(fmt::format("{0} is a table: write it as [{0}]", key), kCorrect);
    const auto rows = Rows();
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.key == key; });
    if (row == rows.end()) return Unknown(key);
    const auto index = static_cast<size_t>(row - rows.begin());
    if (std::any_of(entries_.begin(), entries_.end(),
                    [&](const Entry& entry) { return entry.row == index; })) {
      return Mistake(key + " is set twice", kCorrect);
    }
    auto value = ParseValue(line.substr(equals + 1));
    if (!value) {
      return Unreadable(
          "a value must be a quoted string, a number, true or false, on the same line as its key");
    }
    entries_.push_back({index, std::move(*value), number_});
    return {};
  }

  Status Unknown(const std::string& key) const {
    const std::string nearest = NearestKey(key);
    return Mistake(fmt::format("there is no key '{}'", Printable(key)),
                   nearest.empty()
                       ? "nothing was done; `stasis config show`, without that line, "
                         "lists all keys"
                       : fmt::format("nothing was done; the most similar key is {}", nearest));
  }
  Status Unreadable(const std::string& why) const {
    return Mistake("the line is not valid: " + why,
                   "nothing was done; correct that line, for example to key = \"value\"");
  }
  Status Mistake(const std::string& message, std::string hint) const {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("{}, line {}: {}", path_, number_, message), std::move(hint));
  }

  static constexpr char kCorrect[] = "nothing was done; correct that line";
  const std::string& path_;
  int number_ = 0;
  std::string table_;  // the current table; empty before the first one
  std::vector<Entry> entries_;
};

Status CheckOwner(const struct stat& st, const std::string& path, uid_t uid) {
  const std::string why = ", and it decides which programs Stasis starts";
  if (st.st_uid != 0 && st.st_uid != uid) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} belongs to user {}{}", path, st.st_uid, why),
                fmt::format("nothing was done; `chown {} {}` makes it yours", uid, path));
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("{} can be written by others than its owner (mode {:04o}){}", path,
                    st.st_mode & 07777, why),
        fmt::format("nothing was done; `chmod go-w {}` takes away their permission to write",
                    path));
  }
  return {};
}

}  // namespace

Result<std::vector<Entry>> ParseFile(std::string_view text, const std::string& path) {
  Parser parser(path);
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    STASIS_TRY(parser.ParseLine(line, number));
  }
  return parser.TakeEntries();
}

Result<std::optional<std::string>> ReadConfigFile(const std::string& path, uid_t uid) {
  // O_NONBLOCK: do not wait for the writer of a named pipe.
  auto fd = Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd) {
    Error error = std::move(fd).error();
    if (error.raw == ENOENT || error.raw == ENOTDIR) return std::nullopt;
    error.hint =
        "nothing was done, because the file may set the folders of jobs and images; make it "
        "readable, or name another file with STASIS_CONFIG";
    return Fail(std::move(error));
  }
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, path + " is not a regular file",
                "nothing was done; the configuration must be a TOML file");
  }
  STASIS_TRY(CheckOwner(st, path, uid));
  if (static_cast<uint64_t>(st.st_size) > kMaxFileBytes) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("{} has {} bytes; a configuration file may have at most {}", path,
                            st.st_size, kMaxFileBytes),
                "nothing was done");
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  STASIS_TRY(Annotate(PreadAll(fd->get(), text.data(), text.size(), 0), "read " + path));
  return text;
}

}  // namespace stasis::config
