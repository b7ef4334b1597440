#include "jobs/record.h"

#include <gtest/gtest.h>

namespace stasis::jobs {
namespace {

Job Example() {
  Job job;
  job.id = "llama";
  job.argv = {"/bin/sh", "-c", "echo \"x\"", ""};
  job.cwd = "/home/u";
  job.log = "/var/log/x";
  job.agent = "/var/lib/stasis/agents/00/libstasis-agent.so";
  job.created_ms = 1700000000000;
  job.checkpoints = {{"/images/a", "a", 1700000000001, 12345678901234, 0.75}};
  return job;
}

TEST(RecordTest, JobComesBackAsItWas) {
  auto job = DecodeJob(EncodeJob(Example()));
  ASSERT_TRUE(job) << job.error().ToString();
  EXPECT_EQ(job->id, "llama");
  EXPECT_EQ(job->argv, Example().argv);
  EXPECT_EQ(job->cwd, "/home/u");
  EXPECT_EQ(job->log, "/var/log/x");
  EXPECT_EQ(job->agent, Example().agent);
  EXPECT_EQ(job->created_ms, 1700000000000);
  ASSERT_EQ(job->checkpoints.size(), 1u);
  EXPECT_EQ(job->checkpoints[0].image, "/images/a");
  EXPECT_EQ(job->checkpoints[0].bytes, 12345678901234u);
  EXPECT_EQ(job->checkpoints[0].seconds, 0.75);
}

TEST(RecordTest, ArgumentsThatAreNotUtf8ComeBackAsTheyWere) {
  Job job = Example();
  job.argv.push_back("caf\xe9 \xff\xfe");
  job.cwd = "/\xe9";
  auto back = DecodeJob(EncodeJob(job));
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(back->argv, job.argv);
  EXPECT_EQ(back->cwd, job.cwd);
}

TEST(RecordTest, ARecordFromBeforeTheAgentIsOfAJobWithoutIt) {
  std::string text = EncodeJob(Example());
  size_t at = text.find("\"agent\""), end = text.find('\n', at);
  text.erase(at, end + 1 - at);
  auto job = DecodeJob(text);
  ASSERT_TRUE(job) << job.error().ToString();
  EXPECT_EQ(job->agent, "");
}

TEST(RecordTest, OnlyTheNewestCheckpointsAreKept) {
  Job job = Example();
  for (int i = 0; i < 1500; ++i) job.checkpoints.push_back({"/i", std::to_string(i), i, 1, 1});
  auto back = DecodeJob(EncodeJob(job));
  ASSERT_TRUE(back);
  ASSERT_EQ(back->checkpoints.size(), kMaxCheckpoints);
  EXPECT_EQ(back->checkpoints.back().name, "1499");
}

TEST(RecordTest, HostileRecordsAreRefused) {
  const std::string good = EncodeJob(Example());
  struct Row {
    const char* what;
    std::string from, to;
  };
  const Row kRows[] = {
      {"later version", "\"version\": 1", "\"version\": 2"},
      {"no version", "\"version\": 1", "\"no\": 1"},
      {"id that is a path", "\"id\": \"llama\"", "\"id\": \"../../etc\""},
      {"id that is a number", "\"id\": \"llama\"", "\"id\": 4711"},
      {"arguments that are text", "\"argv\": [", "\"argv\": \"x\", \"z\": ["},
      {"no arguments", "\"argv\": [", "\"argv\": [], \"z\": ["},
      {"argument with a zero byte", "\"/bin/sh\"", "\"/bin\\u0000/sh\""},
      {"argument in odd hex", "\"/bin/sh\"", "{\"hex\": \"abc\"}"},
      {"argument in no hex", "\"/bin/sh\"", "{\"hex\": \"zz\"}"},
      {"relative log", "\"/var/log/x\"", "\"log\""},
      {"relative image", "\"/images/a\"", "\"a\""},
      {"endless directory", "\"/home/u\"", "\"/" + std::string(5000, 'a') + "\""},
      {"time before time", "1700000000000", "-1"},
      {"time with a fraction", "1700000000000", "1.5"},
      {"time after the end", "1700000000000", "18446744073709551615"},
      {"negative bytes", "12345678901234", "-5"},
      {"no seconds", "0.75", "null"},
      {"too many seconds", "0.75", "1e300"},
      {"cut off", "\"cwd\"", ""},
  };
  for (const Row& row : kRows) {
    std::string bad = good;
    size_t at = bad.find(row.from);
    ASSERT_NE(at, std::string::npos) << row.what;
    bad.replace(at, row.from.size(), row.to);
    EXPECT_FALSE(DecodeJob(bad)) << row.what;
  }
  EXPECT_FALSE(DecodeJob(""));
  EXPECT_FALSE(DecodeJob("null"));
  EXPECT_FALSE(DecodeJob("[]"));
  EXPECT_FALSE(DecodeJob(std::string(1 << 20, '[')));
  EXPECT_FALSE(DecodeJob(std::string("\xff\xfe\x00", 3)));
  for (size_t length = 0; length + 2 < good.size(); ++length) {
    EXPECT_FALSE(DecodeJob(good.substr(0, length))) << length;
  }
}

TEST(RecordTest, ProcessRecordsAreBounded) {
  const std::string good = R"({"version": 1, "boot_id": "b", "shim": {"pid": 7, "start_time": 1},)"
                           R"( "root": {"pid": 8, "start_time": 2},)"
                           R"( "log": {"device": 3, "inode": 18446744073709551615}})";
  auto record = DecodeProcesses(good);
  ASSERT_TRUE(record) << record.error().ToString();
  EXPECT_EQ(record->root, (process::ProcessId{{8}, 2}));
  EXPECT_EQ(record->log, (FileId{3, UINT64_MAX}));
  for (const char* inode : {"-1", "1.5", "null", "18446744073709551616"}) {
    std::string bad = good;
    bad.replace(bad.find("18446744073709551615"), 20, inode);
    EXPECT_FALSE(DecodeProcesses(bad)) << inode;
  }
  for (const char* pid : {"0", "1", "-1", "4194305", "8.5", "\"8\"", "99999999999999999999"}) {
    std::string bad = good;
    bad.replace(bad.find("\"pid\": 8") + 7, 1, pid);
    EXPECT_FALSE(DecodeProcesses(bad)) << pid;
  }
  // Without a shim, for an adopted program.
  Processes adopted = *record;
  adopted.shim = {};
  auto again = DecodeProcesses(EncodeProcesses(adopted));
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(*again, adopted);
  for (const char* shim : {R"("pid": 0)", R"("pid": 1)", R"("pid": -1)", R"("pid": null)"}) {
    std::string bad = good;
    bad.replace(bad.find("\"pid\": 7"), 8, shim);  // with a start time
    EXPECT_FALSE(DecodeProcesses(bad)) << shim;
  }
  const std::string end =
      R"({"version": 1, "root": {"pid": 8, "start_time": 2}, "state": "exited", "code": 3,)"
      R"( "signal": 0, "time_ms": 5})";
  EXPECT_TRUE(DecodeEnding(end));
  std::string bad = end;
  bad.replace(bad.find("exited"), 6, "melted");
  EXPECT_FALSE(DecodeEnding(bad));
  bad = end;
  bad.replace(bad.find("\"code\": 3"), 9, "\"code\": 256");
  EXPECT_FALSE(DecodeEnding(bad));
}

TEST(RecordTest, MarkOfADumpKeepsThePathAsItIs) {
  auto mark = DecodeDumped(EncodeDumped({{{8}, 22}, "/images/ a b"}));
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->root, (process::ProcessId{{8}, 22}));
  EXPECT_EQ(mark->image, "/images/ a b");
  for (const char* bad : {"", "\n", "1", "1 2", "2 8 22\n/x\n", "1 8 22", "1 8 22\n/x", "1 8 22\n",
                          "1 8 22\nx\n", "1 -8 22\n/x\n"}) {
    EXPECT_FALSE(DecodeDumped(bad)) << bad;
  }
}

}  // namespace
}  // namespace stasis::jobs
