#include "jobs/job.h"

#include <gtest/gtest.h>

namespace stasis::jobs {
namespace {

TEST(JobIdTest, GrammarMatchesTheManual) {
  for (const char* good : {"a", "llama", "run-1", "a.b_c-9"}) EXPECT_TRUE(IsValidId(good)) << good;
  for (const char* bad : {"", "1", "4711", "A", "-a", ".hidden", "a/b", "a b", "\xc3\xa4", "a\n"}) {
    EXPECT_FALSE(IsValidId(bad)) << bad;
  }
  EXPECT_TRUE(IsValidId(std::string(64, 'a')));
  EXPECT_FALSE(IsValidId(std::string(65, 'a')));
}

TEST(JobIdTest, GeneratedIdsAreValidAndDiffer) {
  std::string first = GenerateId();
  EXPECT_TRUE(IsValidId(first)) << first;
  bool another = false;
  for (int i = 0; i < 20; ++i) another |= GenerateId() != first;
  EXPECT_TRUE(another);
}

}  // namespace
}  // namespace stasis::jobs
