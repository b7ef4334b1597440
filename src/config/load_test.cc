#include "config/load.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "base/file.h"
#include "config/file.h"

namespace stasis::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    char name[] = "/tmp/stasis-config-XXXXXX";
    dir_ = ::mkdtemp(name);
    surroundings_.uid = ::geteuid();
    surroundings_.system_file = dir_ + "/etc/stasis/config.toml";
    surroundings_.variable = [this](const char* name) { return variables_[name]; };
  }
  ~LoadTest() override { EXPECT_TRUE(RemoveTree(dir_)); }

  std::string Write(const std::string& path, const std::string& text, mode_t mode = 0644) {
    EXPECT_TRUE(MakeDirs(path.substr(0, path.rfind('/'))));
    EXPECT_TRUE(WriteFileDurably(path, text));
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  void WriteSystem(const std::string& text) { Write(surroundings_.system_file, text); }
  // Sets the owner of the file to a user other than root, because files of root are accepted for
  // every user.
  void WriteUser(const std::string& text) {
    BeUser();
    Write(dir_ + "/home/.config/stasis/config.toml", text);
  }
  void BeUser() {
    variables_["HOME"] = dir_ + "/home";
    surroundings_.uid = ::geteuid() == 0 ? 1000 : ::geteuid();
  }
  Config MustLoad() {
    auto config = Load(surroundings_);
    EXPECT_TRUE(config) << config.error().ToString();
    return config ? *config : Config();
  }
  Error MustFail() {
    auto config = Load(surroundings_);
    EXPECT_FALSE(config);
    return config ? Error{} : config.error();
  }
  Origin OriginOf(const Config& config, const std::string& key) {
    for (size_t i = 0; i < Rows().size(); ++i) {
      if (Rows()[i].key == key) return config.origins[i];
    }
    ADD_FAILURE() << key;
    return {};
  }

  std::string dir_;
  std::map<std::string, std::string> variables_;
  Surroundings surroundings_;
};

TEST_F(LoadTest, EveryDefaultIsValid) {
  const Config config = MustLoad();
  for (const Row& row : Rows()) {
    Settings settings;
    EXPECT_TRUE(Set(row, std::string(row.initial), From::kDefault, settings)) << row.key;
    EXPECT_EQ(Text(row, settings), row.initial) << row.key;
    EXPECT_EQ(Text(row, config.settings), row.initial) << row.key;
    EXPECT_EQ(OriginOf(config, row.key).from, From::kDefault);
    EXPECT_EQ(std::string(row.unset).empty(), !std::string(row.initial).empty()) << row.key;
  }
  ASSERT_EQ(config.files.size(), 1u);
  EXPECT_FALSE(config.files[0].found);
  EXPECT_EQ(Surroundings().system_file, "/etc/stasis/config.toml");
}

TEST_F(LoadTest, VariablesOverrideTheUsersFileWhichOverridesTheMachines) {
  WriteSystem("[helper]\nidle_s = 1\n[timeouts]\nundo_s = 11\nsettle_s = 111\n");
  WriteUser("\n[helper]\nidle_s = 2\n[timeouts]\nundo_s = 22\n");
  variables_["STASIS_HELPER_IDLE_S"] = "3";
  variables_["STASIS_UNDO_TIMEOUT_S"] = "";
  const Config config = MustLoad();
  EXPECT_EQ(config.settings.helper_idle_s, 3);
  EXPECT_EQ(config.settings.undo_timeout_s, 22);
  EXPECT_EQ(config.settings.settle_timeout_s, 111);
  EXPECT_EQ(OriginOf(config, "helper.idle_s").from, From::kEnvironment);
  const Origin user = OriginOf(config, "timeouts.undo_s");
  EXPECT_EQ(user.file, dir_ + "/home/.config/stasis/config.toml");
  EXPECT_EQ(user.line, 5);
  const Origin machine = OriginOf(config, "timeouts.settle_s");
  EXPECT_EQ(machine.file, surroundings_.system_file);
  EXPECT_EQ(machine.line, 5);
}

TEST_F(LoadTest, RootReadsNoUserFile) {
  WriteUser("[helper]\nidle_s = 2\n");
  surroundings_.uid = 0;
  EXPECT_EQ(MustLoad().settings.helper_idle_s, 60);
}

TEST_F(LoadTest, TheUsersFileIsBelowXdgConfigHome) {
  BeUser();
  Write(dir_ + "/xdg/stasis/config.toml", "helper.idle_s = 4");
  variables_["XDG_CONFIG_HOME"] = dir_ + "/xdg";
  EXPECT_EQ(MustLoad().settings.helper_idle_s, 4);
  variables_["XDG_CONFIG_HOME"] = "xdg";  // relative
  EXPECT_EQ(MustLoad().settings.helper_idle_s, 60);
}

TEST_F(LoadTest, StasisConfigReplacesBothFiles) {
  WriteSystem("[timeouts]\nundo_s = 11\n");
  WriteUser("[timeouts]\nsettle_s = 22\n");
  variables_["STASIS_CONFIG"] = Write(dir_ + "/mine.toml", "[helper]\nidle_s = 5\n");
  const Config config = MustLoad();
  EXPECT_EQ(config.settings.helper_idle_s, 5);
  EXPECT_EQ(config.settings.undo_timeout_s, 600);
  EXPECT_EQ(config.settings.settle_timeout_s, 10);
  EXPECT_EQ(config.files.size(), 1u);
  variables_["STASIS_CONFIG"] = dir_ + "/none.toml";
  const Error error = MustFail();
  EXPECT_EQ(ExitCode(error), 3);
  EXPECT_THAT(error.message, HasSubstr("STASIS_CONFIG names " + dir_ + "/none.toml"));
}

TEST_F(LoadTest, EveryKindIsReadFromAFile) {
  WriteSystem(
      "folders.state = '/srv/stasis'\ndump.compress = 'zstd'\ndump.pack_size = '1GiB'\n"
      "helper.idle_s = 2.5\nrun.keep_gpu_files = true\nrun.hide_gpus = true\n");
  Settings settings = MustLoad().settings;
  EXPECT_EQ(settings.state_dir, "/srv/stasis");
  EXPECT_EQ(settings.compress, "zstd");
  EXPECT_EQ(settings.pack_bytes, 1ull << 30);
  EXPECT_EQ(settings.helper_idle_s, 2.5);
  EXPECT_TRUE(settings.keep_gpu_files);
  EXPECT_TRUE(settings.hide_gpus);
  WriteSystem("dump.pack_size = 2097152");
  EXPECT_EQ(MustLoad().settings.pack_bytes, 2u << 20);
}

TEST_F(LoadTest, WithMoreRightsTrustedSettingsComeFromTheMachine) {
  WriteSystem("[programs]\ncriu = \"/usr/sbin/criu\"\n[limits]\njobs = 5\n");
  WriteUser("[programs]\ncuda_library = \"/home/me/libcuda.so\"\n[dump]\ncompress = \"lz4\"\n");
  variables_["STASIS_CRIU"] = "/home/me/criu";
  variables_["STASIS_LIMIT_JOBS"] = "0";
  EXPECT_EQ(MustLoad().settings.criu, "/home/me/criu");
  surroundings_.more_rights = true;
  Config config = MustLoad();
  EXPECT_EQ(config.settings.criu, "/usr/sbin/criu");
  EXPECT_EQ(OriginOf(config, "programs.criu").file, surroundings_.system_file);
  EXPECT_EQ(config.settings.cuda_library, "");
  EXPECT_EQ(OriginOf(config, "programs.cuda_library").from, From::kDefault);
  EXPECT_EQ(config.settings.most_jobs, 5u);
  EXPECT_EQ(config.settings.compress, "lz4");  // not a trusted setting
  variables_["STASIS_CONFIG"] = dir_ + "/mine.toml";
  Write(dir_ + "/mine.toml", "programs.criu = \"/home/me/criu\"\n");
  EXPECT_EQ(MustLoad().settings.criu, "/usr/sbin/criu");
}

TEST_F(LoadTest, EveryVariableReachesItsSetting) {
  const std::map<Kind, std::pair<const char*, const char*>> values = {
      {Kind::kFolder, {"/a/b", "/a/b"}},
      {Kind::kFile, {"/a/c", "/a/c"}},
      {Kind::kSeconds, {"77", "77"}},
      {Kind::kSize, {"32MiB", "32MiB"}},
      {Kind::kSwitch, {"1", "true"}},
      {Kind::kAddress, {"[::1]:7070", "[::1]:7070"}},
      {Kind::kCount, {"7", "7"}},
      {Kind::kCommand, {"get key | cat", "get key | cat"}},
      {Kind::kRepository, {"s3://bucket", "s3://bucket"}},
  };
  for (const Row& row : Rows()) {
    // A setting with fixed choices gets the last one, which is never the default.
    const std::string choices = row.choices;
    const std::string last = choices.substr(choices.rfind('|') + 1);
    const auto known = values.find(row.kind);
    variables_ = {{row.variable, known == values.end() ? last : known->second.first}};
    const Config config = MustLoad();
    EXPECT_EQ(Text(row, config.settings), known == values.end() ? last : known->second.second)
        << row.key;
    EXPECT_NE(Text(row, config.settings), row.initial) << row.key;
    // No other setting may change.
    for (const Row& other : Rows()) {
      if (other.key == row.key) continue;
      EXPECT_EQ(Text(other, config.settings), other.initial) << other.key;
    }
  }
}

TEST_F(LoadTest, PathsInVariablesMayBeRelative) {
  variables_["STASIS_CRIU"] = "tools/criu";
  EXPECT_EQ(MustLoad().settings.criu, AbsolutePath("tools/criu"));
  ::setenv("HOME", "/home/somebody", 1);
  variables_["STASIS_CRIU"] = "~/criu";
  EXPECT_EQ(MustLoad().settings.criu, "/home/somebody/criu");
}

struct Bad {
  const char* text;
  const char* line;
  const char* what;
  const char* next;
};

TEST_F(LoadTest, AMistakeInAFileGivesOneMessageWithItsLine) {
  for (const Bad& bad : {
           Bad{"[helper]\nidle = 3\n", "line 2", "there is no key 'helper.idle'",
               "the most similar key is helper.idle_s"},
           Bad{"\nidle_s = 3\n", "line 2", "there is no key 'idle_s'",
               "the most similar key is helper.idle_s"},
           Bad{"[helpers]\nidle_s = 3\n", "line 1", "there is no key 'helpers'",
               "the most similar key is helper"},
           Bad{"[helper]\nidle_s.x = 3", "line 2", "there is no key 'helper.idle_s.x'",
               "the most similar key is helper.idle_s"},
           Bad{"x = 1", "line 1", "there is no key 'x'", "config show"},
           Bad{"helper = 3", "line 1", "helper is a table: write it as [helper]", "correct"},
           Bad{"[[helper]]\nidle_s = 3\n", "line 1", "a table is written as [helper]", "correct"},
           Bad{"[helper]\nidle_s = 'soon'\n", "line 2",
               "helper.idle_s is 'soon'; it must be a number of", "correct that line"},
           Bad{"[helper]\nidle_s = '3'\n", "line 2", "helper.idle_s is '3'; it must be a number",
               "correct"},
           Bad{"helper.idle_s = -1", "line 1",
               "is -1; it must be a number of seconds from 0 to 86400", ""},
           Bad{"helper.idle_s = 86401", "line 1", "is 86401; it must be a number of seconds from 0",
               ""},
           Bad{"helper.idle_s = nan", "line 1", "helper.idle_s is nan", ""},
           Bad{"helper.idle_s = [1]", "line 1", "a value must be a quoted string, a number",
               "correct"},
           Bad{"helper.idle_s = 1979-05-27", "line 1", "a value must be a quoted string, a number",
               ""},
           Bad{"timeouts.undo_s = 0", "line 1", "is 0; it must be a number of seconds from 1 to",
               ""},
           Bad{"dump.pack_size = '1KiB'", "line 1",
               "is '1KiB'; it must be a size from 1MiB to 1TiB", ""},
           Bad{"dump.pack_size = '2TiB'", "line 1", "it must be a size from 1MiB to 1TiB", ""},
           Bad{"dump.pack_size = 5", "line 1", "is 5; it must be a size from 1MiB to 1TiB", ""},
           Bad{"dump.pack_size = true", "line 1", "is true; it must be a size", ""},
           Bad{"dump.compress = 'gzip'", "line 1",
               "is 'gzip'; it must be one of none, lz4, zstd, auto", ""},
           Bad{"dump.compress = 3", "line 1", "is 3; it must be one of", ""},
           Bad{"folders.state = 'relative'", "line 1",
               "it must be the path of a folder that begins with / or ~/", ""},
           Bad{"folders.state = \"/a\\nb\"", "line 1", "folders.state is '/a?b'", ""},
           Bad{"folders.state = 3", "line 1", "folders.state is 3; it must be the path", ""},
           Bad{"run.keep_gpu_files = 'true'", "line 1", "is 'true'; it must be true or false", ""},
           Bad{"helper.idle_s = 1\nhelper.idle_s = 2\n", "line 2", "helper.idle_s is set twice",
               "correct"},
           Bad{"\n\n[helper\n", "line 3", "the line is not valid: a table is written", "key = "},
           Bad{"helper.idle_s = +\t", "line 1", "a value must be", "key = "},
           Bad{"[[[m[", "line 1", "the line is not valid", "key = "},
           Bad{"[\x16", "line 1", "a control character", "key = "},
           Bad{"\n\xcf\xbb = 3", "line 2", "a key consists of letters", "key = "},
           Bad{"[helper]\xef\xbb\x9f", "line 1", "a table is written as [helper]", "key = "},
           Bad{"dump.compress = \"zstd\" \xcf\xbb", "line 1", "a value must be", "key = "},
           Bad{"dump.compress = \"\"\"zstd\n\"\"\"", "line 1", "a value must be", "key = "},
       }) {
    WriteSystem(bad.text);
    const Error error = MustFail();
    EXPECT_EQ(ExitCode(error), 2) << bad.text;
    EXPECT_THAT(error.message, AllOf(StartsWith(surroundings_.system_file + ", " + bad.line + ": "),
                                     HasSubstr(bad.what)));
    EXPECT_THAT(error.hint, AllOf(HasSubstr("nothing was done"), HasSubstr(bad.next))) << bad.text;
    EXPECT_EQ(error.message.find('\n'), std::string::npos);
  }
}

TEST_F(LoadTest, TheFirstOfSeveralMistakesIsReported) {
  WriteSystem("[timeouts]\nundo = 1\n[helper]\nidle = 1\n");
  EXPECT_THAT(MustFail().message, HasSubstr("line 2: there is no key 'timeouts.undo'"));
}

TEST_F(LoadTest, AMistakeInAVariableIsReportedWithItsName) {
  variables_["STASIS_HELPER_IDLE_S"] = "soon";
  Error error = MustFail();
  EXPECT_EQ(ExitCode(error), 2);
  EXPECT_THAT(error.message,
              StartsWith("STASIS_HELPER_IDLE_S is 'soon'; it must be a number of seconds"));
  EXPECT_THAT(error.hint, HasSubstr("helper.idle_s"));
  variables_ = {{"STASIS_FORK_KEEPS_GPU_FILES", "yes please"}};
  EXPECT_THAT(MustFail().message, HasSubstr("it must be true or false"));
}

TEST_F(LoadTest, AFileThatOtherUsersCanWriteIsRejected) {
  for (mode_t mode : {0664, 0646, 0666}) {
    Write(surroundings_.system_file, "[helper]\nidle_s = 1\n", mode);
    const Error error = MustFail();
    EXPECT_EQ(ExitCode(error), 4);
    EXPECT_THAT(error.message, AllOf(StartsWith(surroundings_.system_file),
                                     HasSubstr("can be written by others than its owner")));
    EXPECT_THAT(error.hint, HasSubstr("chmod go-w " + surroundings_.system_file));
  }
  Write(surroundings_.system_file, "[helper]\nidle_s = 1\n", 0600);
  EXPECT_EQ(MustLoad().settings.helper_idle_s, 1);
}

TEST_F(LoadTest, AFileOfAnotherUserIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "changing the owner of a file needs root";
  WriteSystem("[helper]\nidle_s = 1\n");
  ASSERT_EQ(::chown(surroundings_.system_file.c_str(), 1000, 1000), 0);
  const Error error = MustFail();
  EXPECT_EQ(ExitCode(error), 4);
  EXPECT_THAT(error.message, HasSubstr("belongs to user 1000"));
  EXPECT_THAT(error.hint, HasSubstr("chown 0 " + surroundings_.system_file));
  surroundings_.uid = 1000;
  EXPECT_EQ(MustLoad().settings.helper_idle_s, 1);
}

TEST_F(LoadTest, ASpecialOrTooLargeFileIsRejected) {
  ASSERT_TRUE(MakeDirs(surroundings_.system_file));
  EXPECT_THAT(MustFail().message, HasSubstr("is not a regular file"));
  ASSERT_EQ(::rmdir(surroundings_.system_file.c_str()), 0);
  ASSERT_EQ(::mkfifo(surroundings_.system_file.c_str(), 0600), 0);
  EXPECT_THAT(MustFail().message, HasSubstr("is not a regular file"));
  ASSERT_EQ(::unlink(surroundings_.system_file.c_str()), 0);
  WriteSystem(std::string(kMaxFileBytes + 1, '#'));
  EXPECT_THAT(MustFail().message, HasSubstr("a configuration file may have at most 65536"));
}

TEST_F(LoadTest, AFileThatCannotBeReadIsAnError) {
  // Runs in a child, because dropped capabilities cannot be regained.
  WriteSystem("[helper]\nidle_s = 1\n");
  ASSERT_EQ(::chmod(surroundings_.system_file.c_str(), 0600), 0);
  ASSERT_EQ(::chmod(dir_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod((dir_ + "/etc").c_str(), 0755), 0);
  ASSERT_EQ(::chmod((dir_ + "/etc/stasis").c_str(), 0755), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "changing the user needs root";
  EXPECT_EXIT(
      {
        if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
        surroundings_.uid = 65534;
        auto config = Load(surroundings_);
        if (!config) std::fputs(config.error().ToString().c_str(), stderr);
        ::_exit(!config && ExitCode(config.error()) == 4 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "config.toml: Permission denied");
}

TEST(NearestKeyTest, FindsTheIntendedKey) {
  struct Typo {
    const char* wrong;
    const char* right;
  };
  for (const Typo& typo :
       {Typo{"helper.idel_s", "helper.idle_s"}, Typo{"helper.idle", "helper.idle_s"},
        Typo{"compress", "dump.compress"}, Typo{"folder.state", "folders.state"},
        Typo{"timeout.undo_s", "timeouts.undo_s"}, Typo{"criu", "programs.criu"},
        Typo{"something.else.altogether", ""}, Typo{"", ""}}) {
    EXPECT_EQ(NearestKey(typo.wrong), typo.right) << typo.wrong;
  }
  EXPECT_EQ(NearestKey(std::string(1 << 20, 'x')), "");
}

}  // namespace
}  // namespace stasis::config
