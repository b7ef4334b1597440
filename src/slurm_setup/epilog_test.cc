#include "slurm_setup/epilog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "slurm_setup/site.h"

namespace stasis::slurm_setup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FakeCommands : public UserCommands {
 public:
  Status Run(const std::vector<std::string>& args) override {
    log.push_back(fmt::format("{}", fmt::join(args, " ")));
    if (args[0] == failing) return Fail(code, args[0] + " failed");
    return {};
  }
  std::vector<std::string> log;
  std::string failing;
  Code code = Code::kFailedPrecondition;
};

TEST(Epilog, UndoesOperationsBeforeItFreesMemory) {
  FakeCommands commands;
  EXPECT_TRUE(FreeLeftovers(commands));
  EXPECT_THAT(commands.log, ElementsAre("recover", "arena free --keep-of-running"));
}

TEST(Epilog, FreesMemoryAlthoughAnOperationCannotBeUndone) {
  FakeCommands commands;
  commands.failing = "recover";
  const Status freed = FreeLeftovers(commands);
  ASSERT_FALSE(freed);
  EXPECT_THAT(freed.error().ToString(), HasSubstr("recover failed"));
  EXPECT_THAT(commands.log, ElementsAre("recover", "arena free --keep-of-running"));
}

TEST(Epilog, StopsIfACommandCannotBeKilled) {
  FakeCommands commands;
  commands.failing = "recover";
  commands.code = Code::kUnavailable;
  EXPECT_FALSE(FreeLeftovers(commands));
  EXPECT_THAT(commands.log, ElementsAre("recover"));
}

TEST(Epilog, NoProcessOutlivesACommand) {
  char pattern[] = "/tmp/slurm-epilog-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  const std::string stasis = folder + "/stasis";
  ASSERT_TRUE(ReplaceFile(stasis, fmt::format("#!/bin/sh\n"
                                              "setsid sleep 1000 &\n"
                                              "echo $! > {}/pid\n",
                                              folder)));
  ASSERT_EQ(::chmod(stasis.c_str(), 0700), 0);
  auto commands = BecomeUser({"7", ::geteuid(), {}}, stasis);
  ASSERT_TRUE(commands);
  EXPECT_TRUE((*commands)->Run({"recover"}));
  const pid_t helper = std::stoi(ReadFile(folder + "/pid").value_or("-1"));
  ASSERT_GT(helper, 0);
  EXPECT_EQ(::kill(helper, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  ASSERT_TRUE(RemoveTree(folder));
}

TEST(Epilog, TakesFoldersOfThePluginAndNoProgram) {
  const char* variables[] = {"SLURM_JOB_ID=7",
                             "SLURM_JOB_UID=1001",
                             "STASIS_STATE_DIR=/x",
                             "SPANK_STASIS_STATE_DIR=/state",
                             "SPANK_STASIS_CRIU=/evil",
                             "SPANK_LD_PRELOAD=/evil.so",
                             nullptr};
  const auto job = ReadEndedJob(const_cast<char**>(variables));
  ASSERT_TRUE(job);
  EXPECT_EQ(job->id, "7");
  EXPECT_EQ(job->uid, 1001U);
  EXPECT_THAT(job->folders, ElementsAre("STASIS_STATE_DIR=/state"));
}

TEST(Epilog, NeedsTheVariablesOfSlurm) {
  const char* none[] = {nullptr};
  const char* wrong[] = {"SLURM_JOB_ID=7", "SLURM_JOB_UID=1001x", nullptr};
  for (const char** variables : {none, wrong}) {
    const auto job = ReadEndedJob(const_cast<char**>(variables));
    ASSERT_FALSE(job);
    EXPECT_EQ(job.error().code, Code::kInvalidArgument);
  }
}

TEST(Site, ReadsThePluginFromAnIncludedFile) {
  char pattern[] = "/tmp/slurm-site-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  ASSERT_TRUE(MakeDirs(folder + "/conf.d"));
  ASSERT_TRUE(MakeDirs(folder + "/plugins"));
  ASSERT_TRUE(ReplaceFile(folder + "/plugstack.conf", "include conf.d/*\n"));
  ASSERT_TRUE(ReplaceFile(folder + "/conf.d/1", "include ../plugstack.conf\noptional stasis.so\n"));
  ASSERT_TRUE(ReplaceFile(folder + "/plugins/stasis.so", "stasis: compiled for Slurm 0x160508"));
  ASSERT_TRUE(ReplaceFile(folder + "/epilog", "#!/bin/sh\nstasis slurm epilog || true\n"));
  SiteOptions options;
  options.paths = {folder + "/run", folder + "/data", {}, {}};
  const Site site = ReadSite(options, [&](const std::vector<std::string>& argv) {
    return argv.back() == "config"
               ? Result<std::string>(fmt::format("SLURM_CONF = {0}/slurm.conf\nEpilog = "
                                                 "{0}/epilog\nPluginDir = /none:{0}/plugins\n",
                                                 folder))
               : Result<std::string>(
                     "PartitionName=a TotalNodes=1\nPartitionName=b TotalNodes=3\n");
  });
  EXPECT_EQ(site.problem, "");
  EXPECT_EQ(site.plugin_path, folder + "/plugins/stasis.so");
  EXPECT_EQ(site.compiled_for, (Release{22, 5}));
  EXPECT_EQ(site.nodes(), 3);
  EXPECT_EQ(site.epilog_calls, true);
  EXPECT_EQ(site.images.problem, "");
  ASSERT_TRUE(RemoveTree(folder));
}

TEST(Site, LooksAtAllEpilogs) {
  char pattern[] = "/tmp/slurm-epilogs-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  ASSERT_TRUE(ReplaceFile(folder + "/other", "#!/bin/sh\n"));
  ASSERT_TRUE(ReplaceFile(folder + "/ours", "#!/bin/sh\nstasis slurm epilog || true\n"));
  SiteOptions options;
  options.paths = {folder + "/run", folder + "/data", {}, {}};
  const auto calls = [&](const char* first, const char* second) {
    return ReadSite(options,
                    [&](const std::vector<std::string>&) {
                      return Result<std::string>(fmt::format(
                          "Epilog[0] = {0}/{1}\nEpilog[1] = {0}/{2}\n", folder, first, second));
                    })
        .epilog_calls;
  };
  EXPECT_EQ(calls("other", "ours"), true);
  EXPECT_EQ(calls("missing", "ours"), true);
  EXPECT_EQ(calls("other", "other"), false);
  EXPECT_EQ(calls("other", "missing"), std::nullopt);
  ASSERT_TRUE(RemoveTree(folder));
}

TEST(Site, FindsThePluginsOfAnInstallation) {
  char pattern[] = "/tmp/slurm-plugins-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  EXPECT_EQ(ReleasesOf(FindPlugins(folder)), "no release");
  const std::pair<const char*, const char*> files[] = {
      {"slurm-24.11", "stasis: compiled for Slurm 0x180b05"},
      {"slurm", "stasis: compiled for Slurm 0x160508"},
      {"slurm-25.05", "no plugin"},
      {"slurmy", "stasis: compiled for Slurm 0x190500"}};
  for (const auto& [name, text] : files) {
    ASSERT_TRUE(MakeDirs(folder + "/lib/stasis/" + name));
    ASSERT_TRUE(ReplaceFile(folder + "/lib/stasis/" + name + "/stasis.so", text));
  }
  const auto plugins = FindPlugins(folder);
  EXPECT_EQ(ReleasesOf(plugins), "22.05 and 24.11");
  EXPECT_EQ(plugins[0].path, DefaultPlugin(folder));
  const InstalledPlugin* newer = PluginFor(plugins, Release{24, 11});
  ASSERT_NE(newer, nullptr);
  EXPECT_EQ(newer->path, folder + "/lib/stasis/slurm-24.11/stasis.so");
  EXPECT_EQ(PluginFor(plugins, Release{25, 5}), nullptr);
  EXPECT_EQ(PluginFor(plugins, std::nullopt), nullptr);
  ASSERT_TRUE(RemoveTree(folder));
}

TEST(Site, CommandsThatFailTellWhy) {
  EXPECT_EQ(RunBounded({"echo", "yes"}).value_or(""), "yes\n");
  const auto failed = RunBounded({"sh", "-c", "echo reason >&2; exit 3"});
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().ToString(), HasSubstr("exited with code 3: reason"));
  EXPECT_FALSE(RunBounded({"/no/such/program"}));
}

}  // namespace
}  // namespace stasis::slurm_setup
