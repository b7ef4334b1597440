#include "criu/options.h"

#include <gtest/gtest.h>

#include "criu/rpc.pb.h"

namespace stasis::criu {
namespace {

TEST(Options, UseCriusNames) {
  Options options;
  for (const char* text : {"tcp=close", "file-locks", "link-remap=yes", "shell-job=1",
                           "ext-unix-sk=no", "ghost-limit=1048576", "freeze-timeout=7",
                           "log-level=4", "skip-in-flight", "evasive-devices", "network-lock=skip",
                           "orphan-pts-master", "external=unix[47]", "external=mnt[/a]:b=c"}) {
    auto set = options.Set(text);
    EXPECT_TRUE(set) << set.error().ToString();
  }
  rpc::Opts opts;
  Apply(options, &opts);
  EXPECT_TRUE(opts.tcp_close());
  EXPECT_FALSE(opts.tcp_established());
  EXPECT_TRUE(opts.file_locks());
  EXPECT_TRUE(opts.link_remap());
  EXPECT_TRUE(opts.shell_job());
  EXPECT_FALSE(opts.ext_unix_sk());
  EXPECT_EQ(opts.ghost_limit(), 1048576u);
  EXPECT_EQ(opts.timeout(), 7u);
  EXPECT_EQ(opts.log_level(), 4);
  EXPECT_TRUE(opts.tcp_skip_in_flight());
  EXPECT_TRUE(opts.evasive_devices());
  EXPECT_TRUE(opts.orphan_pts_master());
  EXPECT_EQ(opts.network_lock(), rpc::SKIP);
  ASSERT_EQ(opts.external_size(), 2);
  EXPECT_EQ(opts.external(1), "mnt[/a]:b=c");
  EXPECT_EQ(opts.manage_cgroups_mode(), rpc::IGNORE);
}

TEST(Options, RefuseLossesByDefault) {
  rpc::Opts opts;
  Apply(Options{}, &opts);
  EXPECT_FALSE(opts.tcp_close());
  EXPECT_FALSE(opts.tcp_established());
  EXPECT_FALSE(opts.file_locks());
  EXPECT_FALSE(opts.link_remap());
}

TEST(Options, ThePluginsErrorsAreAlwaysLogged) {
  for (int level : {-1, 0, 1, 4}) {
    Options options;
    options.log_level = level;
    rpc::Opts opts;
    Apply(options, &opts);
    EXPECT_EQ(opts.log_level(), level);
    options.plugins = "/plugins";
    Apply(options, &opts);
    EXPECT_EQ(opts.log_level(), std::max(level, 1));
  }
}

struct Case {
  const char* text;
  const char* words;
};
constexpr Case kWrong[] = {
    {"pid=1", "not a CRIU option that can be set"},
    {"", "not a CRIU option that can be set"},
    {"=", "not a CRIU option that can be set"},
    {"tcp=maybe", "refuse, close, keep"},
    {"network-lock=no", "iptables, nftables, skip"},
    {"file-locks=perhaps", "neither yes nor no"},
    {"ghost-limit=1k", "is not a number"},
    {"ghost-limit=-1", "is not a number"},
    {"freeze-timeout=99999999999", "is not a number"},
    {"external", "needs a value"},
};

TEST(Options, RejectInvalidOptions) {
  for (const Case& c : kWrong) {
    Options options;
    auto set = options.Set(c.text);
    ASSERT_FALSE(set) << c.text;
    EXPECT_EQ(ExitCode(set.error()), 2) << c.text;
    EXPECT_NE(set.error().message.find(c.words), std::string::npos) << set.error().message;
  }
  EXPECT_NE(Options{}.Set("pid=1").error().hint.find("file-locks"), std::string::npos);
}

}  // namespace
}  // namespace stasis::criu
