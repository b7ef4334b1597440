#include "repository/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hex.h"

namespace stasis::repository {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MasterKey CountingKey() {
  SecretBytes bytes;
  for (size_t i = 0; i < kKeyBytes; ++i) bytes.data()[i] = static_cast<uint8_t>(i);
  return MasterKey(bytes);
}

// The key consists of the bytes 0x00 to 0x1f; its id was computed with Python's `cryptography`
// package.
constexpr char kCountingHex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
constexpr char kCountingId[] = "4a842777d7624912ee61fb2538ce6e50";

std::string Line() { return std::string("stasis-key-1 ") + kCountingHex + " " + kCountingId; }

class KeysTest : public ::testing::Test {
 protected:
  KeysTest() {
    char name[] = "/tmp/stasis-keys-test.XXXXXX";
    dir_ = ::mkdtemp(name);
    paths_.data = dir_;
    ::unsetenv("CREDENTIALS_DIRECTORY");
  }
  ~KeysTest() override {
    ::unsetenv("CREDENTIALS_DIRECTORY");
    (void)RemoveTree(dir_);
  }

  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = dir_ + "/" + name;
    EXPECT_TRUE(WriteFileDurably(path, text));
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }

  std::string dir_;
  Paths paths_;
};

Error ErrorOf(const Result<MasterKey>& key) { return key ? Error{Code::kOk} : key.error(); }
Error ErrorOf(const Result<FoundKey>& key) { return key ? Error{Code::kOk} : key.error(); }

TEST_F(KeysTest, TheTextOfAKeyIsThatOfTheFormat) {
  EXPECT_THAT(FormatKey(CountingKey()), ::testing::EndsWith("\n" + Line() + "\n"));
  for (const std::string& text : {Line(), Line() + "\n", "# a\n\n  \t" + Line() + " \r\n#b\n\n"}) {
    auto key = ParseKey(text, "x");
    ASSERT_TRUE(key) << key.error().ToString();
    EXPECT_TRUE(key->bytes() == CountingKey().bytes());
  }
}

// No message contains a part of the text, which may be a key with a mistake.
TEST_F(KeysTest, ATextThatIsNoKeyIsRefused) {
  struct Case {
    std::string text;
    Code code;
    const char* message;
  };
  std::string mistyped = Line(), other_id = Line();
  mistyped[13] = '1';
  other_id.back() = '1';
  const std::string hex = kCountingHex;
  for (const Case& c : {
           Case{"", Code::kInvalidArgument, "has no key"},
           Case{"# only a comment\n", Code::kInvalidArgument, "has no key"},
           Case{"hello", Code::kInvalidArgument, "has no key"},
           Case{hex, Code::kInvalidArgument, "has no key"},
           Case{"stasis-key-2 " + hex, Code::kInvalidArgument, "another version"},
           Case{"stasis-key-1", Code::kInvalidArgument, "incomplete"},
           Case{"stasis-key-1 " + hex, Code::kInvalidArgument, "incomplete"},
           Case{Line().substr(0, 100), Code::kInvalidArgument, "incomplete"},
           Case{Line() + " x", Code::kInvalidArgument, "incomplete"},
           Case{Line() + "\n" + Line(), Code::kInvalidArgument, "more than one line"},
           Case{"stasis-key-1 " + std::string(64, 'g') + " " + kCountingId, Code::kInvalidArgument,
                "incomplete"},
           Case{mistyped, Code::kDataLoss, "does not match the id"},
           Case{other_id, Code::kDataLoss, "does not match the id"},
           Case{std::string(100, '\0'), Code::kInvalidArgument, "has no key"},
       }) {
    const Error error = ErrorOf(ParseKey(c.text, "FILE"));
    EXPECT_EQ(error.code, c.code) << c.text;
    EXPECT_THAT(error.message, HasSubstr(c.message));
    EXPECT_THAT(error.message, HasSubstr("FILE"));
    EXPECT_THAT(error.ToString() + error.hint, Not(HasSubstr("0102030405")));
  }
}

TEST_F(KeysTest, AKeyFileIsCreatedOnceForItsUserOnly) {
  const std::string path = dir_ + "/key";
  auto created = CreateKeyFile(path);
  ASSERT_TRUE(created) << created.error().ToString();
  struct stat st;
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  auto read = ReadKeyFile(path);
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_TRUE(read->bytes() == created->bytes());
  EXPECT_EQ(ErrorOf(CreateKeyFile(path)).code, Code::kAlreadyExists);
  EXPECT_TRUE(ReadKeyFile(path)->bytes() == created->bytes()) << "it was overwritten";
  EXPECT_EQ(ListDir(dir_)->size(), 1u) << "a temporary file is left";
  EXPECT_EQ(ErrorOf(CreateKeyFile(dir_ + "/none/key")).code, Code::kNotFound);
}

TEST_F(KeysTest, AFileThatOthersMayAccessIsRefused) {
  const std::string path = Write("key", Line());
  EXPECT_EQ(ErrorOf(ReadKeyFile(path)).code, Code::kOk);
  for (mode_t mode : {0640, 0604, 0620, 0602, 0660}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const Error error = ErrorOf(ReadKeyFile(path));
    EXPECT_EQ(error.code, Code::kPermissionDenied);
    EXPECT_THAT(error.message, HasSubstr("accessible to other users"));
  }
  ASSERT_EQ(::chmod(path.c_str(), 0400), 0);
  EXPECT_EQ(ErrorOf(ReadKeyFile(path)).code, Code::kOk);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    EXPECT_THAT(ErrorOf(ReadKeyFile(path)).message, HasSubstr("belongs to user 12345"));
  }
}

TEST_F(KeysTest, OnlyARegularFileOfAKeysSizeIsRead) {
  EXPECT_EQ(ErrorOf(ReadKeyFile(dir_)).code, Code::kPermissionDenied);
  const std::string fifo = dir_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf(ReadKeyFile(fifo)).code, Code::kPermissionDenied) << "it must not block";
  const Error error = ErrorOf(ReadKeyFile(Write("long", Line() + std::string(5000, ' '))));
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("at most 4096"));
  EXPECT_EQ(ErrorOf(ReadKeyFile(Write("empty", ""))).code, Code::kInvalidArgument);
  EXPECT_EQ(ErrorOf(ReadKeyFile(dir_ + "/none")).code, Code::kNotFound);
}

Error CommandError(const std::string& command, const Deadline& deadline = {}) {
  return ErrorOf(ReadKeyFromCommand(command, deadline));
}

TEST_F(KeysTest, ACommandPrintsAKey) {
  const std::string path = Write("key", FormatKey(CountingKey()));
  auto key = ReadKeyFromCommand("cat " + path + " | cat", {});
  ASSERT_TRUE(key) << key.error().ToString();
  EXPECT_TRUE(key->bytes() == CountingKey().bytes());
  EXPECT_EQ(CommandError("cat >/dev/null; cat " + path).code, Code::kOk) << "stdin must be empty";
}

TEST_F(KeysTest, AFailedCommandIsReportedWithItsReasonAndWithoutItsOutput) {
  Error error = CommandError("echo secret; echo first >&2; echo no access >&2; exit 3");
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("keys.command exited with code 3: no access"));
  EXPECT_THAT(error.ToString() + error.hint, Not(HasSubstr("secret")));
  error = CommandError("printf 'a\\033[1m\\n' >&2; exit 1");
  EXPECT_THAT(error.message, ::testing::EndsWith(": a?[1m"));
  EXPECT_THAT(CommandError("kill -9 $$").message, HasSubstr("killed by signal 9"));
  EXPECT_EQ(CommandError("/none/such").code, Code::kUnavailable);
  error = CommandError("echo secret");
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_THAT(error.message, HasSubstr("the output of keys.command has no key"));
  EXPECT_EQ(CommandError("true").code, Code::kInvalidArgument);
}

// Tests an endless output, and one that is complete before it is read.
TEST_F(KeysTest, ACommandThatPrintsTooMuchIsKilled) {
  for (const char* command : {"yes", "head -c 5000 /dev/zero", "yes >&2 & yes"}) {
    const Error error = CommandError(command);
    EXPECT_EQ(error.code, Code::kResourceExhausted) << command;
    EXPECT_THAT(error.message, HasSubstr("printed more than 4096 bytes"));
  }
  const std::string path = Write("key", Line());
  EXPECT_EQ(CommandError("head -c 1000000 /dev/zero >&2; cat " + path).code, Code::kOk)
      << "messages are not bounded, only what is kept of them";
}

TEST_F(KeysTest, ACommandThatHangsIsKilledWithItsChildren) {
  const std::string pid_file = dir_ + "/pid";
  const Error error = CommandError("sleep 1000 & echo $! > " + pid_file + "; wait",
                                   Deadline::In(std::chrono::milliseconds(500)));
  EXPECT_EQ(error.code, Code::kDeadlineExceeded);
  auto pid = ReadFile(pid_file);
  ASSERT_TRUE(pid) << "the command did not start in time";
  // SIGKILL was sent to the group before the shell was reaped, but the kernel may need a moment to
  // end the processes.
  const auto gone = Deadline::In(std::chrono::seconds(20));
  auto is_running = [&] {
    auto stat = ReadFile("/proc/" + pid->substr(0, pid->size() - 1) + "/stat");
    return stat && stat->find(") Z") == stat->npos;
  };
  while (is_running() && !gone.passed()) ::usleep(10'000);
  EXPECT_FALSE(is_running());
}

TEST_F(KeysTest, EndlessMessagesDoNotDelayTheDeadline) {
  const Error error = CommandError("yes >&2", Deadline::In(std::chrono::milliseconds(500)));
  EXPECT_EQ(error.code, Code::kDeadlineExceeded);
}

// A background process of the command keeps the pipes open after the command has ended. It must not
// delay the key.
TEST_F(KeysTest, AProcessThatTheCommandLeavesDoesNotDelayTheKey) {
  const std::string path = Write("key", Line());
  auto key = ReadKeyFromCommand("sleep 20 & cat " + path, Deadline::In(std::chrono::seconds(15)));
  EXPECT_TRUE(key) << key.error().ToString();
}

TEST_F(KeysTest, TheSourceIsChosenInTheDocumentedOrder) {
  Error error = ErrorOf(FindKey({}, paths_));
  EXPECT_EQ(error.code, Code::kNotFound);
  EXPECT_THAT(error.message, HasSubstr(dir_ + "/stasis-key does not exist"));

  const MasterKey in_state = *CreateKeyFile(KeyFilePath({}, paths_));
  auto found = FindKey({}, paths_);
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->key.id(), in_state.id());
  EXPECT_EQ(found->source, FoundKey::Source::kFile);
  EXPECT_EQ(found->from, dir_ + "/stasis-key");

  ASSERT_TRUE(MakeDirs(dir_ + "/credentials"));
  ::setenv("CREDENTIALS_DIRECTORY", (dir_ + "/credentials").c_str(), 1);
  EXPECT_EQ(FindKey({}, paths_)->key.id(), in_state.id()) << "the service has no such credential";
  Write("credentials/stasis-key", Line(), 0440);
  found = FindKey({}, paths_);
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->source, FoundKey::Source::kCredential);
  EXPECT_EQ(found->key.id(), CountingKey().id());

  const MasterKey in_file = *CreateKeyFile(dir_ + "/mine");
  const KeySettings file{dir_ + "/mine", ""};
  EXPECT_EQ(KeyFilePath(file, paths_), dir_ + "/mine");
  EXPECT_EQ(FindKey(file, paths_)->key.id(), in_file.id());
  EXPECT_EQ(ErrorOf(FindKey({dir_ + "/none", ""}, paths_)).code, Code::kNotFound)
      << "another key must not be used instead";

  found = FindKey({"", "cat " + dir_ + "/mine"}, paths_);
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->source, FoundKey::Source::kCommand);
  EXPECT_EQ(found->key.id(), in_file.id());
  error = ErrorOf(FindKey({"/a", "b"}, paths_));
  EXPECT_EQ(error.code, Code::kInvalidArgument);
  EXPECT_EQ(ExitCode(error), 2);
}

TEST_F(KeysTest, ACredentialThatEverybodyMayReadIsRefused) {
  ::setenv("CREDENTIALS_DIRECTORY", dir_.c_str(), 1);
  for (mode_t mode : {0444, 0460, 0604}) {
    Write("stasis-key", Line(), mode);
    EXPECT_EQ(ErrorOf(FindKey({}, paths_)).code, Code::kPermissionDenied);
  }
}

}  // namespace
}  // namespace stasis::repository
