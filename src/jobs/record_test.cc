#include "jobs/record.h"

#include <gtest/gtest.h>

namespace stasis::jobs {
namespace {

TEST(RecordTest, InvalidNumbersInRecordsAreRejected) {
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
  // The record of an adopted program has no shim.
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

TEST(RecordTest, MarkOfADumpKeepsThePathUnchanged) {
  auto mark = DecodeDumped(EncodeDumped({{{8}, 22}, "/images/ a b"}));
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->root, (process::ProcessId{{8}, 22}));
  EXPECT_EQ(mark->image, "/images/ a b");
  for (const char* bad : {"", "\n", "1", "1 2", "2 8 22\n/x\n", "1 8 22", "1 8 22\n/x", "1 8 22\n",
                          "1 8 22\nx\n", "1 -8 22\n/x\n"}) {
    EXPECT_FALSE(DecodeDumped(bad)) << bad;
  }
}

TEST(RecordTest, MarkOfAMoveSaysWhetherItIsKnown) {
  for (const bool is_known : {true, false}) {
    const std::string place = is_known ? "ssh://b/a" : "perhaps ssh://b/a";
    auto mark = DecodeDumped(EncodeDumped({{{8}, 22}, place}));
    ASSERT_TRUE(mark) << place;
    Job job;
    job.state = State::kDumped;
    job.dumped_image = mark->image;
    EXPECT_TRUE(WasMoved(job)) << place;
    EXPECT_EQ(MovedTo(job), is_known ? "b/a" : "");
    EXPECT_EQ(PerhapsMovedTo(job), is_known ? "" : "b/a");
    job.state = State::kRunning;
    EXPECT_EQ(MovedTo(job) + PerhapsMovedTo(job), "") << "it is still here";
  }
}

}  // namespace
}  // namespace stasis::jobs
