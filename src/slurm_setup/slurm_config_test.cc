#include "slurm_setup/slurm_config.h"

#include <gmock/gmock.h>

namespace stasis::slurm_setup {
namespace {

using ::testing::ElementsAre;

TEST(SlurmConfig, ReadsWhatScontrolPrints) {
  const Values values = Values::OfConfig(
      "Configuration data as of 2026-11-28T11:00:00\n"
      "Epilog                  = (null)\n"
      "KillWait                = 30 sec\n"
      "PreemptMode             = GANG,SUSPEND\n"
      "RequeueExit             = 3,70-75\n"
      "SlurmctldParameters     = a=b,preempt_send_user_signal\n"
      "\nCgroup Support Configuration:\n"
      "ConstrainRAMSpace       = yes\n"
      "\nSlurmctld(primary) at host is UP\n");
  EXPECT_EQ(values.Get("epilog"), "");
  EXPECT_EQ(values.Number("killwait"), 30);
  EXPECT_EQ(values.Number("preemptmode"), std::nullopt);
  EXPECT_EQ(values.Get("constrainramspace"), "yes");
  EXPECT_TRUE(values.Lists("slurmctldparameters", "PREEMPT_send_user_signal"));
  EXPECT_TRUE(values.Lists("slurmctldparameters", "a"));
  EXPECT_FALSE(values.Lists("slurmctldparameters", "preempt"));
  EXPECT_TRUE(values.HasNumber("requeueexit", 75));
  EXPECT_TRUE(values.HasNumber("requeueexit", 3));
  EXPECT_FALSE(values.HasNumber("requeueexit", 69));
  EXPECT_FALSE(values.HasNumber("preemptmode", 75));
}

TEST(SlurmConfig, JoinsSettingsThatAreGivenSeveralTimes) {
  const Values values = Values::OfConfig(
      "Epilog[0]               = /etc/a\nEpilog[1] = /etc/b\nEpilogMsgTime = 2000 usec\n");
  EXPECT_EQ(values.Get("epilog"), "/etc/a,/etc/b");
}

TEST(SlurmConfig, ReadsPartitions) {
  const Values values =
      Values::OfWords("PartitionName=low GraceTime=20 PreemptMode=REQUEUE QoS=N/A");
  EXPECT_EQ(values.Get("partitionname"), "low");
  EXPECT_EQ(values.Number("gracetime"), 20);
  EXPECT_EQ(values.Get("qos"), "");
}

TEST(SlurmConfig, ReadsPlugstack) {
  const PlugStack stack = ParsePlugStack(
      "# optional /commented/stasis.so\n"
      "include plugstack.conf.d/*\n"
      "REQUIRED other.so\n"
      "optional  /lib/stasis.so\tpartitions=gpu,low launcher=/x # ours\n"
      "optional\n");
  EXPECT_THAT(stack.includes, ElementsAre("plugstack.conf.d/*"));
  ASSERT_EQ(stack.plugins.size(), 2U);
  EXPECT_TRUE(stack.plugins[0].is_required);
  EXPECT_FALSE(stack.plugins[1].is_required);
  EXPECT_EQ(stack.plugins[1].path, "/lib/stasis.so");
  EXPECT_EQ(stack.plugins[1].Argument("partitions"), "gpu,low");
  EXPECT_EQ(stack.plugins[1].Argument("launcher"), "/x");
  EXPECT_EQ(stack.plugins[1].Argument("launch"), "");
}

TEST(SlurmConfig, ReadsReleases) {
  EXPECT_EQ(ParseRelease("22.05.8"), (Release{22, 5}));
  EXPECT_EQ(ParseRelease("24.11.0-0rc1"), (Release{24, 11}));
  for (const char* wrong : {"", "22", "22.", "x.05", "22.99"}) {
    EXPECT_EQ(ParseRelease(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(ToString({22, 5}), "22.05");
  const std::string zero(1, '\0');
  EXPECT_EQ(FindRelease(zero + "stasis: compiled for Slurm 0x160508" + zero), (Release{22, 5}));
  EXPECT_EQ(FindRelease("stasis: compiled for Slurm 0x"), std::nullopt);
  EXPECT_EQ(FindRelease("another plugin"), std::nullopt);
}

}  // namespace
}  // namespace stasis::slurm_setup
