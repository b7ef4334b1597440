#include "config/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace stasis::config {
namespace {

struct Mistake {
  int line;
  Error error;
};

struct Reading {
  const std::string& path;
  std::vector<Entry> entries;
  std::optional<Mistake> first;  // by line number, because the keys of a table are sorted

  void Complain(int line, const std::string& message, const std::string& hint) {
    if (first && first->line <= line) return;
    first = Mistake{line, Error{Code::kInvalidArgument, Domain::kUsage, 0,
                                fmt::format("{}, line {}: {}", path, line, message), hint}};
  }
};

// Error texts may quote arbitrary bytes of the user's file.
std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, 80));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return shown + (text.size() > 80 ? "…" : "");
}

void Unknown(Reading& reading, const std::string& key, int line) {
  const std::string nearest = NearestKey(key);
  reading.Complain(line, fmt::format("there is no key '{}'", Printable(key)),
                   nearest.empty() ? "nothing was done; `stasis config show`, without that line, "
                                     "lists the keys that there are"
                                   : fmt::format("nothing was done; the nearest is {}", nearest));
}

const char* TypeName(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  return "a date or a time";
}

std::optional<Raw> RawOf(const toml::node& node) {
  if (const auto* text = node.as_string()) return Raw(text->get());
  if (const auto* number = node.as_integer()) return Raw(number->get());
  if (const auto* number = node.as_floating_point()) return Raw(number->get());
  if (const auto* value = node.as_boolean()) return Raw(value->get());
  return std::nullopt;
}

bool IsTable(const std::string& name) {
  return std::any_of(Rows().begin(), Rows().end(), [&](const Row& row) {
    return std::string_view(row.key).starts_with(name + ".");
  });
}

void ReadTable(Reading& reading, const toml::table& table, const std::string& above);

void ReadNode(Reading& reading, const std::string& key, const toml::node& node) {
  const int line = static_cast<int>(node.source().begin.line);
  if (IsTable(key)) {
    if (const toml::table* table = node.as_table()) {
      ReadTable(reading, *table, key);
    } else {
      reading.Complain(line, fmt::format("{} has keys of its own, as in [{}]", key, key),
                       "nothing was done; correct that line");
    }
    return;
  }
  const auto rows = Rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.key == key; });
  if (row == rows.end()) {
    Unknown(reading, key, line);
    return;
  }
  if (auto raw = RawOf(node)) {
    reading.entries.push_back({static_cast<size_t>(row - rows.begin()), std::move(*raw), line});
    return;
  }
  reading.Complain(line, fmt::format("{} is {}; it is {}", key, TypeName(node), Expected(*row)),
                   "nothing was done; correct that line");
}

void ReadTable(Reading& reading, const toml::table& table, const std::string& above) {
  for (const auto& [name, node] : table) {
    ReadNode(reading,
             above.empty() ? std::string(name.str()) : above + "." + std::string(name.str()), node);
  }
}

Status CheckOwner(const struct stat& st, const std::string& path, uid_t uid) {
  const std::string why = ", and it says which programs Stasis starts";
  if (st.st_uid != 0 && st.st_uid != uid) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} belongs to user {}{}", path, st.st_uid, why),
                fmt::format("nothing was done; `chown {} {}` makes it yours", uid, path));
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} can be written by others than its owner (mode {:04o}){}", path,
                            st.st_mode & 07777, why),
                fmt::format("nothing was done; `chmod go-w {}` takes that from them", path));
  }
  return {};
}

constexpr std::string_view kBare =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
constexpr std::string_view kBlank = " \t";

void SkipBlank(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
}

// Returns true if nothing but a comment follows.
bool EndsThere(std::string_view text) {
  SkipBlank(text);
  return text.empty() || text.front() == '#';
}

// Returns true for a string, number or boolean on one line.
bool LooksLikeValue(std::string_view text) {
  SkipBlank(text);
  if (text.empty()) return false;
  const char first = text.front();
  if (first != '"' && first != '\'') {
    const size_t length = std::min(text.find_first_not_of(std::string(kBare) + ".:+"), text.size());
    std::string_view word = text.substr(0, length);
    if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
    const bool is_one = !word.empty() && (('0' <= word[0] && word[0] <= '9') || word == "true" ||
                                          word == "false" || word == "nan" || word == "inf");
    return is_one && EndsThere(text.substr(length));
  }
  size_t end = 1;
  while (end < text.size() && text[end] != first) end += first == '"' && text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return false;
  return EndsThere(text.substr(end + 1));
}

// Checks a line for mistakes that the parser (version 3.3) handles only with an assertion. Accepts
// just the part of TOML that settings need. Returns a description of the mistake, or nullptr.
const char* Mistaken(std::string_view line) {
  const bool has_control = std::any_of(line.begin(), line.end(), [](unsigned char c) {
    return (c < 0x20 && c != '\t') || c == 0x7f;
  });
  if (has_control) return "a control character";
  SkipBlank(line);
  if (line.empty() || line.front() == '#') return nullptr;
  if (line.front() == '[') {
    const size_t end = line.find_first_not_of(kBare, 1);
    const bool is_table = end > 1 && end != line.npos && line[end] == ']';
    return is_table && EndsThere(line.substr(end + 1)) ? nullptr
                                                       : "a table is named as in [helper]";
  }
  const size_t equals = line.find('=');
  if (equals == line.npos) return "a setting is a line with key = value";
  const std::string_view key = line.substr(0, equals);
  if (key.find_first_not_of(std::string(kBare) + ". \t") != key.npos) {
    return "a key is of letters, digits, '_', '-' and '.'";
  }
  return LooksLikeValue(line.substr(equals + 1))
             ? nullptr
             : "a value is a \"text\", a number, true or false, on the line of its key";
}

std::optional<Mistake> FirstMistaken(std::string_view text, const std::string& path) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const char* what = Mistaken(line);
    if (what == nullptr) continue;
    Reading reading{path, {}, {}};
    reading.Complain(number, std::string("this cannot be read: ") + what,
                     "nothing was done; correct that line, for example to key = \"value\"");
    return std::move(reading.first);
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<Entry>> ParseFile(std::string_view text, const std::string& path) {
  if (auto mistake = FirstMistaken(text, path)) return Fail(std::move(mistake->error));
  Reading reading{path, {}, {}};
  const toml::parse_result parsed = toml::parse(text, path);
  if (parsed) {
    ReadTable(reading, parsed.table(), "");
  } else {
    const toml::parse_error& error = parsed.error();
    reading.Complain(static_cast<int>(error.source().begin.line),
                     "this is not TOML: " + std::string(error.description()),
                     "nothing was done; correct that line, for example to key = \"value\"");
  }
  if (reading.first) return Fail(std::move(reading.first->error));
  std::sort(reading.entries.begin(), reading.entries.end(),
            [](const Entry& a, const Entry& b) { return a.line < b.line; });
  return std::move(reading.entries);
}

Result<std::optional<std::string>> ReadConfigFile(const std::string& path, uid_t uid) {
  // O_NONBLOCK: do not wait for the writer of a named pipe.
  auto fd = Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd) {
    Error error = std::move(fd).error();
    if (error.raw == ENOENT || error.raw == ENOTDIR) return std::nullopt;
    error.hint =
        "nothing was done: where jobs and images are may stand in it; let it be read, or "
        "name another file by STASIS_CONFIG";
    return Fail(std::move(error));
  }
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (!S_ISREG(st.st_mode)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0, path + " is not an ordinary file",
                "nothing was done; the configuration is a file in TOML");
  }
  STASIS_TRY(CheckOwner(st, path, uid));
  if (static_cast<uint64_t>(st.st_size) > kMaxFileBytes) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("{} has {} bytes; a configuration has {} at most", path, st.st_size,
                            kMaxFileBytes),
                "nothing was done");
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  STASIS_TRY(Annotate(PreadAll(fd->get(), text.data(), text.size(), 0), "read " + path));
  return text;
}

}  // namespace stasis::config
