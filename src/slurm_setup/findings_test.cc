// Checks the findings, and that docs/slurm.md has the table of checks.
#include "slurm_setup/findings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/file.h"
#include "slurm_setup/lines.h"

namespace stasis::slurm_setup {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kAllRights = (uint64_t{1} << 41) - 1;

// A cluster with which nothing is wrong.
Site GoodSite() {
  Site site;
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"slurm_version", "22.05.8"},
           {"clustername", "test"},
           {"proctracktype", "proctrack/cgroup"},
           {"taskplugin", "affinity,task/cgroup"},
           {"preempttype", "preempt/qos"},
           {"preemptmode", "REQUEUE"},
           {"jobrequeue", "1"},
           {"requeueexit", "75"},
           {"killwait", "120 sec"},
           {"slurmctldparameters", "preempt_send_user_signal"},
           {"clifilterplugins", "cli_filter/lua"},
           {"epilog", "/etc/epilog"}}) {
    site.config.Set(name, value);
  }
  site.partitions = {Values::OfWords("PartitionName=low PreemptMode=REQUEUE TotalNodes=2")};
  site.plugstack = "/etc/plugstack.conf";
  site.plugin = PluginLine{false, "/lib/stasis.so", {}};
  site.plugin_path = "/lib/stasis.so";
  site.plugin_exists = true;
  site.compiled_for = Release{22, 5};
  site.launcher = "/libexec/stasis-step";
  site.launcher_works = true;
  site.slurmd_rights = kAllRights;
  site.last_capability = 40;
  site.images.path = "/home/alice/images";
  site.run.path = "/var/tmp/run";
  site.run.is_local = true;
  site.hides_gpus = true;
  site.epilog_calls = true;
  return site;
}

// Returns the findings that are not ok, as "ID LEVEL, ID LEVEL".
std::string Bad(const Site& site) {
  constexpr const char* kLevels[] = {"ok", "note", "warning", "cannot"};
  std::string text;
  for (const Judged& judged : JudgeSite(site)) {
    if (judged.finding.level == Level::kOk) continue;
    EXPECT_NE(judged.finding.fix, "") << judged.check->id;
    EXPECT_NE(judged.finding.found, "") << judged.check->id;
    EXPECT_TRUE(judged.finding.level != Level::kCannot || *judged.check->stops != '\0')
        << judged.check->id;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", judged.check->id,
                        kLevels[static_cast<int>(judged.finding.level)]);
  }
  return text;
}

TEST(SlurmFindings, AreAllOkOnAGoodCluster) {
  EXPECT_EQ(Bad(GoodSite()), "");
  EXPECT_EQ(JudgeSite(GoodSite()).size(), Checks().size());
}

TEST(SlurmFindings, NameWhatIsWrong) {
  const std::pair<const char*, std::function<void(Site&)>> cases[] = {
      {"plugin cannot", [](Site& s) { s.plugstack_problem = "no such file"; }},
      {"plugin cannot, plugin-release note, launcher note",
       [](Site& s) { s.plugin.reset(), s.plugin_exists = false; }},
      {"plugin cannot, plugin-release note, launcher note",
       [](Site& s) { s.plugin_exists = false; }},
      {"plugin warning", [](Site& s) { s.plugin->is_required = true; }},
      {"plugin-release cannot",
       [](Site& s) {
         s.compiled_for = Release{23, 11};
       }},
      {"plugin-release warning", [](Site& s) { s.compiled_for.reset(); }},
      {"launcher cannot", [](Site& s) { s.launcher_works = false; }},
      {"rights cannot", [](Site& s) { s.slurmd_rights = kAllRights >> 1; }},
      {"rights cannot", [](Site& s) { s.last_capability = 39; }},
      {"rights warning",
       [](Site& s) {
         s.plugin->arguments = {"tcp=keep"};
         s.slurmd_rights = kAllRights & ~(uint64_t{1} << 12);  // without CAP_NET_ADMIN
       }},
      {"rights note", [](Site& s) { s.slurmd_rights.reset(); }},
      {"proctrack cannot", [](Site& s) { s.config.Set("proctracktype", "proctrack/linuxproc"); }},
      {"task-plugin warning", [](Site& s) { s.config.Set("taskplugin", "task/none"); }},
      {"preempt-mode note", [](Site& s) { s.config.Set("preempttype", "preempt/none"); }},
      {"preempt-mode warning", [](Site& s) { s.partitions[0].Set("preemptmode", "GANG,SUSPEND"); }},
      {"requeue warning", [](Site& s) { s.config.Set("jobrequeue", "0"); }},
      {"requeue warning",
       [](Site& s) {
         s.config.Set("slurm_version", "24.05.1");
         s.compiled_for = Release{24, 5};
       }},
      {"requeue-exit warning", [](Site& s) { s.config.Set("requeueexit", "74"); }},
      {"requeue-exit warning", [](Site& s) { s.config.Set("requeueexithold", "70-80"); }},
      {"dump-time warning", [](Site& s) { s.config.Set("killwait", "30 sec"); }},
      {"grace-signal warning", [](Site& s) { s.config.Set("slurmctldparameters", "other"); }},
      {"grace-signal warning", [](Site& s) { s.config.Set("clifilterplugins", "other"); }},
      {"memory-limit note", [](Site& s) { s.config.Set("constrainramspace", "yes"); }},
      {"images cannot", [](Site& s) { s.images.problem = "/home: Permission denied"; }},
      {"images warning", [](Site& s) { s.images.is_local = true; }},
      {"images note", [](Site& s) { s.is_root = true; }},
      {"run-folder cannot", [](Site& s) { s.run.problem = "/home: Permission denied"; }},
      {"run-folder warning", [](Site& s) { s.run.is_local = false; }},
      {"hidden-gpus note", [](Site& s) { s.hides_gpus = false; }},
      {"epilog note", [](Site& s) { s.epilog_calls = false; }},
      {"job-container warning",
       [](Site& s) { s.config.Set("jobcontainertype", "job_container/tmpfs"); }},
      {"job-container cannot",
       [](Site& s) {
         s.config.Set("jobcontainertype", "job_container/tmpfs");
         s.config.Set("prologflags", "Alloc,Contain");
         s.images.path = "/tmp/images";
       }},
  };
  for (const auto& [expected, spoil] : cases) {
    Site site = GoodSite();
    spoil(site);
    EXPECT_EQ(Bad(site), expected);
  }
}

// A node of a partition alone, as on a workstation, needs no folder that others share.
TEST(SlurmFindings, AcceptALocalFolderOnOneNode) {
  Site site = GoodSite();
  site.images.is_local = true;
  site.partitions[0].Set("totalnodes", "1");
  EXPECT_EQ(Bad(site), "");
}

TEST(SlurmFindings, WithoutSlurmAreFew) {
  Site site;
  site.problem = "start scontrol: No such file or directory";
  site.last_capability = 40;
  EXPECT_EQ(Bad(site), "slurm cannot, rights note, hidden-gpus note");
}

TEST(SlurmFindings, ThePageHasTheTableOfTheCode) {
  std::string table = "| id | what is looked at | what a finding means | what fixes it | |\n";
  table += "|---|---|---|---|---|\n";
  for (const Check& check : Checks()) {
    table +=
        fmt::format("| `{}` | {} | {} | {} | {} |\n", check.id, check.about, check.meaning,
                    check.fix, *check.stops == '\0' ? "" : fmt::format("stops {}", check.stops));
  }
  const auto page = ReadFile(STASIS_SOURCES "/docs/slurm.md");
  ASSERT_TRUE(page);
  EXPECT_THAT(*page, HasSubstr(table)) << "it should read:\n" << table;
}

// A cluster with the lines of `stasis slurm config` has no finding that these lines could avoid.
TEST(SlurmLines, MakeAGoodCluster) {
  Site site = GoodSite();
  site.config = Values();
  for (const ConfigFile& file : LinesFor({"/opt/stasis",
                                          Release{24, 11},
                                          {"gpu", "low"},
                                          {{"/opt/stasis/24/stasis.so", {24, 11}}}})) {
    for (const ConfigLine& line : file.lines) {
      if (file.name == "slurm.conf" || file.name == "cgroup.conf") {
        const size_t equals = line.text.find('=');
        site.config.Set(line.text.substr(0, equals), line.text.substr(equals + 1));
      } else if (file.name == "plugstack.conf") {
        site.plugin = ParsePlugStack(line.text).plugins.at(0);
      }
    }
  }
  site.config.Set("slurm_version", "24.11.1");
  site.compiled_for = Release{24, 11};
  EXPECT_EQ(Bad(site), "memory-limit note");
  EXPECT_EQ(site.plugin->path, "/opt/stasis/24/stasis.so");
  EXPECT_EQ(site.plugin->Argument("partitions"), "gpu,low");
}

TEST(SlurmLines, AreOnlyThoseOfTheRelease) {
  EXPECT_THAT(TextOf(LinesFor({"/opt", Release{24, 5}, {}, {}})), HasSubstr("\nMaxBatchRequeue="));
  EXPECT_THAT(TextOf(LinesFor({"/opt", std::nullopt, {}, {}})), HasSubstr("\nMaxBatchRequeue="));
  const std::string older = TextOf(LinesFor({"/opt", Release{22, 5}, {}, {}}));
  EXPECT_EQ(older.find("MaxBatchRequeue"), older.npos);
}

TEST(SlurmLines, NameThePluginOfTheRelease) {
  const std::vector<InstalledPlugin> plugins = {
      {"/opt/lib/stasis/slurm/stasis.so", {22, 5}},
      {"/opt/lib/stasis/slurm-24.11/stasis.so", {24, 11}}};
  const auto text = [&](const std::optional<Release>& release) {
    return TextOf(LinesFor({"/opt", release, {}, plugins}));
  };
  EXPECT_THAT(text(Release{22, 5}), HasSubstr("\noptional /opt/lib/stasis/slurm/stasis.so\n"));
  EXPECT_THAT(text(Release{24, 11}),
              HasSubstr("\noptional /opt/lib/stasis/slurm-24.11/stasis.so\n"));
  EXPECT_EQ(text(Release{24, 11}).find("refuses"), std::string::npos);
  EXPECT_THAT(text(Release{25, 5}),
              HasSubstr("Slurm 25.05 refuses this plugin: the installation has plugins for 22.05 "
                        "and 24.11.\noptional /opt/lib/stasis/slurm/stasis.so\n"));
}

TEST(SlurmFindings, NameThePluginOfTheRelease) {
  Site site = GoodSite();
  site.config.Set("slurm_version", "24.11.5");
  const auto fix = [&] {
    for (const Judged& judged : JudgeSite(site)) {
      if (std::string_view(judged.check->id) == "plugin-release") return judged.finding.fix;
    }
    return std::string();
  };
  EXPECT_THAT(fix(), HasSubstr("build Stasis"));
  site.plugins = {{"/lib/slurm-24.11/stasis.so", {24, 11}}};
  EXPECT_EQ(fix(), "write /lib/slurm-24.11/stasis.so in its place in /etc/plugstack.conf");
}

}  // namespace
}  // namespace stasis::slurm_setup
