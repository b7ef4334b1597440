#include "repository/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/erase.h"
#include "base/file.h"
#include "base/hex.h"
#include "base/shell_command.h"

namespace stasis::repository {
namespace {

constexpr std::string_view kVersionWord = "stasis-key-1";
constexpr std::string_view kAnyVersion = "stasis-key-";
constexpr char kFormatHint[] =
    "`stasis key create` makes a key; docs/security.md describes the line \"stasis-key-1 KEY ID\"";

// Erases a text at the end of a scope.
class Eraser {
 public:
  explicit Eraser(std::string& text) : text_(text) {}
  ~Eraser() { Erase(text_); }
  Eraser(const Eraser&) = delete;
  Eraser& operator=(const Eraser&) = delete;

 private:
  std::string& text_;
};

std::vector<std::string_view> WordsOf(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
    if (line.empty()) return words;
    const size_t end = std::min(line.find_first_of(kSpace), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

// Returns the words of the only line that is not empty and not a comment.
Result<std::vector<std::string_view>> KeyLine(std::string_view text, const std::string& what) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    auto words = WordsOf(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words[0].starts_with('#')) continue;
    if (!found.empty()) {
      return Fail(Code::kInvalidArgument, what + " has more than one line", kFormatHint);
    }
    found = std::move(words);
  }
  if (found.empty()) return Fail(Code::kInvalidArgument, what + " has no key", kFormatHint);
  return found;
}

bool IsHex(std::string_view word, size_t digits) {
  return word.size() == digits &&
         word.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}

// Selects the owners and modes of a key file that are accepted.
enum class Readers : uint8_t {
  kOwn,         // this user alone
  kCredential,  // systemd lets the service's user read it, by owner, group or an access list
};

Status CheckAccess(const struct stat& st, const std::string& path, Readers readers) {
  const uid_t user = ::geteuid();
  if (!S_ISREG(st.st_mode)) {
    return Fail(Code::kPermissionDenied, path + " is not a regular file");
  }
  if (st.st_uid != user && !(readers == Readers::kCredential && st.st_uid == 0)) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} belongs to user {} and not to user {}", path, st.st_uid, user),
                "a key file must belong to the user who runs Stasis");
  }
  const mode_t others = readers == Readers::kCredential ? 027 : 077;
  if ((st.st_mode & others) != 0) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} is accessible to other users (mode {:04o}), who could decrypt your "
                            "images",
                            path, st.st_mode & 07777),
                fmt::format("if no other user has read it, run `chmod 600 {}`; otherwise make a "
                            "new key and push the images again",
                            path));
  }
  return {};
}

Result<MasterKey> ReadChecked(const std::string& path, Readers readers) {
  // Opening a FIFO must not block.
  auto fd = Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd) return Fail(std::move(fd).error());
  struct stat st;
  if (::fstat(fd->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  STASIS_TRY(CheckAccess(st, path, readers));
  if (static_cast<uint64_t>(st.st_size) > kMaxKeyTextBytes) {
    return Fail(Code::kInvalidArgument,
                fmt::format("{} has {} bytes, and a key file has at most {}", path, st.st_size,
                            kMaxKeyTextBytes),
                kFormatHint);
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  const Eraser eraser(text);
  STASIS_TRY(Annotate(PreadAll(fd->get(), text.data(), text.size(), 0), "read " + path));
  return ParseKey(text, path);
}

}  // namespace

std::string FormatKey(const MasterKey& key) {
  std::string hex = HexOfBytes(key.bytes().View());
  const Eraser eraser(hex);
  return fmt::format(
      "# The master key of encrypted repositories of Stasis. Keep it secret, and keep a copy.\n"
      "{} {} {}\n",
      kVersionWord, hex, key.id().Hex());
}

Result<MasterKey> ParseKey(std::string_view text, const std::string& what) {
  STASIS_ASSIGN(const auto words, KeyLine(text, what));
  if (words[0] != kVersionWord) {
    const bool later = words[0].starts_with(kAnyVersion);
    return Fail(Code::kInvalidArgument,
                what + (later ? " has a key of another version of the format" : " has no key"),
                kFormatHint);
  }
  constexpr size_t kKeyDigits = 2 * kKeyBytes, kIdDigits = 2 * Id128::kBytes;
  if (words.size() != 3 || !IsHex(words[1], kKeyDigits) || !IsHex(words[2], kIdDigits)) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the key in {} is incomplete: it must have {} hexadecimal digits, a "
                            "space, and {} more digits",
                            what, kKeyDigits, kIdDigits),
                kFormatHint);
  }
  std::string raw = BytesOfHex(words[1]);
  const Eraser eraser(raw);
  SecretBytes bytes;
  std::copy(raw.begin(), raw.end(), bytes.data());
  MasterKey key(bytes);
  if (key.id().View() != BytesOfHex(words[2])) {
    return Fail(Code::kDataLoss,
                fmt::format("the key in {} is damaged: it does not match the id beside it", what),
                "take the key from its copy");
  }
  return key;
}

Result<MasterKey> CreateKeyFile(const std::string& path) {
  const Error exists{
      .code = Code::kAlreadyExists,
      .message = path + " exists already",
      .hint =
          "nothing was changed; if the key in it was lost, images that were encrypted with it "
          "could not be read"};
  if (PathExists(path)) return Fail(exists);
  STASIS_ASSIGN(MasterKey key, MasterKey::Random());
  std::string text = FormatKey(key);
  const Eraser eraser(text);
  STASIS_TRY(WriteNewFileDurably(path, text));
  // Another process may have created the file at the same time.
  STASIS_ASSIGN(const MasterKey there, ReadKeyFile(path));
  if (there.id() != key.id()) return Fail(exists);
  return key;
}

Result<MasterKey> ReadKeyFile(const std::string& path) { return ReadChecked(path, Readers::kOwn); }

Result<MasterKey> ReadKeyFromCommand(const std::string& command, const Deadline& deadline) {
  auto output = RunShellCommand({"keys.command", command, kMaxKeyTextBytes}, deadline);
  if (!output) return Fail(std::move(output).error());
  const Eraser eraser(*output);
  return ParseKey(*output, "the output of keys.command");
}

std::string KeyFilePath(const KeySettings& settings, const Paths& paths) {
  return settings.file.empty() ? paths.data + "/" + kKeyFileName : settings.file;
}

Result<FoundKey> FindKey(const KeySettings& settings, const Paths& paths,
                         const Deadline& deadline) {
  if (!settings.file.empty() && !settings.command.empty()) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "both keys.file and keys.command are set", "`stasis config show` says where");
  }
  if (!settings.command.empty()) {
    STASIS_ASSIGN(MasterKey key, ReadKeyFromCommand(settings.command, deadline));
    return FoundKey{std::move(key), FoundKey::Source::kCommand, settings.command};
  }
  const char* credentials = ::secure_getenv("CREDENTIALS_DIRECTORY");
  if (settings.file.empty() && credentials != nullptr) {
    const std::string path = std::string(credentials) + "/" + kKeyFileName;
    if (PathExists(path)) {
      STASIS_ASSIGN(MasterKey key, ReadChecked(path, Readers::kCredential));
      return FoundKey{std::move(key), FoundKey::Source::kCredential, path};
    }
  }
  const std::string path = KeyFilePath(settings, paths);
  auto key = ReadChecked(path, Readers::kOwn);
  if (key) return FoundKey{std::move(*key), FoundKey::Source::kFile, path};
  if (key.error().code != Code::kNotFound) return Fail(std::move(key).error());
  return Fail(Code::kNotFound, "there is no master key: " + path + " does not exist",
              "`stasis key create` makes one; on another machine that uses the same repository, "
              "copy the key file, or set keys.file or keys.command (docs/config.md)");
}

}  // namespace stasis::repository
