#include "api/result_json.h"

#include <gtest/gtest.h>

#include "api/result_message.h"

namespace stasis::api {
namespace {

operations::OperationResult SomeDump() {
  operations::OperationResult result;
  result.account.verb = "dump";
  result.account.total_s = 3;
  plan::PhaseReport phase;
  phase.name = "write blocks";
  phase.seconds = 2;
  phase.bytes = 10;
  phase.depth = 1;
  result.account.phases.push_back(phase);
  result.target = "llama";
  result.pid = 42;
  result.image =
      "/images/ll\xff"
      "ama";
  result.stored.added = 5;
  result.stored.cpu.raw = 6;
  result.shared_bytes = 7;
  result.saved.unchanged = 8;
  result.notes = {"a note"};
  return result;
}

TEST(ResultJsonTest, HasWhatTheOperationFilledIn) {
  const nlohmann::json json = ResultJson(ToMessage(SomeDump()));
  EXPECT_EQ(json["verb"], "dump");
  EXPECT_EQ(json["target"], "llama");
  EXPECT_EQ(json["pid"], 42);
  EXPECT_EQ(json["image"], "/images/ll?ama");
  EXPECT_EQ(json["stored"]["added_bytes"], 5);
  EXPECT_EQ(json["stored"]["cpu_uncompressed_bytes"], 6);
  EXPECT_EQ(json["saved"]["unchanged_bytes"], 8);
  EXPECT_EQ(json["notes"], nlohmann::json::array({"a note"}));
  EXPECT_EQ(json["planned_phases"], nlohmann::json::array());
  EXPECT_EQ(json["phases"][0]["bytes_per_s"], 5.0);
  EXPECT_EQ(json["phases"][0]["depth"], 1);
}

TEST(ResultJsonTest, NamesThePathOfTheGpuMemory) {
  v1::OperationResult result;
  EXPECT_EQ(ResultJson(result)["path"], "opaque");
  result.set_shared_bytes(1);
  EXPECT_EQ(ResultJson(result)["path"], "shared");
  result.add_left_to_driver("process 4 runs without the agent");
  EXPECT_EQ(ResultJson(result)["path"], "mixed");
}

}  // namespace
}  // namespace stasis::api
