// The client asks which GPUs the program sees.

#include <stdlib.h>

#include <filesystem>

#include "stand.h"

namespace stasis::agent_test {
namespace {

// Software GPUs of another directory than those of the other tests.
class Visible : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/stasis-agent-visible-XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    directory_ = path;
    before_ = getenv("SOFTGPU_DIR");
    setenv("SOFTGPU_DIR", path, 1);
    setenv("SOFTGPU_DEVICES", "2", 1);
    setenv("STASIS_HIDE_GPUS", "1", 1);
  }
  void TearDown() override {
    setenv("SOFTGPU_DIR", before_.c_str(), 1);
    setenv("SOFTGPU_DEVICES", "1", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("STASIS_HIDE_GPUS");
    std::filesystem::remove_all(directory_);
  }

  std::string directory_, before_;
};

TEST_F(Visible, TheClientIsToldTheGpusOfTheProgram) {
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  Target target({"direct"});
  const std::string piece = target.Ask("alloc 41943040");
  target.Ask("fill " + piece + " 7");
  auto client = target.Connect();
  ASSERT_DONE(client);
  for (int round = 0; round < 2; ++round) {
    auto gpus = client->Visible(kLong);
    ASSERT_DONE(gpus);
    ASSERT_EQ(gpus->size(), 1u);
    EXPECT_EQ((*gpus)[0].bytes[15], 1);
    // While the gate is closed, the agent tells what it knows.
    if (round == 0) ASSERT_DONE(client->Close(kLong));
  }
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("check " + piece + " 7"), "right");
}

TEST_F(Visible, TheClientIsToldIfAllAreSeen) {
  Target target({"direct"});
  target.Ask("alloc 4096");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto gpus = client->Visible(kLong);
  ASSERT_DONE(gpus);
  EXPECT_TRUE(gpus->empty());
}

TEST_F(Visible, TheDriverHidesThemIfTheUserDoesNotAsk) {
  unsetenv("STASIS_HIDE_GPUS");
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  Target target({"direct"});
  target.Ask("alloc 4096");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto gpus = client->Visible(kLong);
  ASSERT_DONE(gpus);
  EXPECT_TRUE(gpus->empty());
}

}  // namespace
}  // namespace stasis::agent_test
