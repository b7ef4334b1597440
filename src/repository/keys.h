// The master key of encrypted repositories, and where it comes from: a file, a command (a key
// management service) or a credential of systemd.
//
// A key is one line of text. Empty lines and lines that begin with '#' are ignored.
//
//   stasis-key-1 KEY ID
//
// KEY is 64 hexadecimal digits. ID is the key's id (MasterKey::id), 32 digits. It reveals a
// mistyped or damaged key.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/paths.h"
#include "base/result.h"
#include "repository/master_key.h"

namespace stasis::repository {

// The maximum length of a key file and of a key command's output.
inline constexpr size_t kMaxKeyTextBytes = 4096;
// The file's name in the state folder, and the credential's name.
inline constexpr char kKeyFileName[] = "stasis-key";
inline constexpr std::chrono::seconds kKeyCommandTimeout{60};

// Returns the text of a key with a comment. The caller should erase it (Erase).
std::string FormatKey(const MasterKey& key);
// Returns kInvalidArgument if the text is not one key, and kDataLoss if its id does not match.
// `what` names the text's origin in messages, which never contain any of the text.
Result<MasterKey> ParseKey(std::string_view text, const std::string& what);

// Creates a file of mode 0600 with a new key. Returns kAlreadyExists if the file exists.
Result<MasterKey> CreateKeyFile(const std::string& path);
// Reads a key file. Returns kPermissionDenied unless the file is a regular file of this user that
// other users cannot access.
Result<MasterKey> ReadKeyFile(const std::string& path);
// Runs `command` with /bin/sh and reads the key that it prints. The command has the rights and the
// environment of this process, without capabilities. Returns
//   kUnavailable        it failed; the message has the last line that it wrote to stderr
//   kDeadlineExceeded   it has not ended by the deadline; it was killed
//   kResourceExhausted  it printed more than kMaxKeyTextBytes; it was killed
// or an error of ParseKey.
Result<MasterKey> ReadKeyFromCommand(const std::string& command, const Deadline& deadline);

struct KeySettings {
  std::string file;     // keys.file
  std::string command;  // keys.command
};

struct FoundKey {
  enum class Source : uint8_t { kFile, kCommand, kCredential };
  MasterKey key;
  Source source;
  std::string from;  // the path or the command
};

// Returns the path at which `key create` puts the key: keys.file, else the one in the state folder.
std::string KeyFilePath(const KeySettings& settings, const Paths& paths);

// Finds the master key: in keys.file, from keys.command, in $CREDENTIALS_DIRECTORY/stasis-key if
// that exists, else in the state folder. Returns kNotFound if there is none, and kInvalidArgument
// if both settings are set.
Result<FoundKey> FindKey(const KeySettings& settings, const Paths& paths,
                         const Deadline& deadline = Deadline::In(kKeyCommandTimeout));

}  // namespace stasis::repository
