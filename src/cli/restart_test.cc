#include "cli/restart.h"

#include <gmock/gmock.h>

namespace stasis::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Job Ended(const std::string& state, int code = -1) {
  v1::Job job;
  job.set_id("a");
  job.set_state(state);
  if (code >= 0) job.set_code(code);
  return job;
}

void AddDump(v1::ListCheckpointsResponse& history, const std::string& image, bool exists,
             const std::string& copy = "") {
  v1::Checkpoint& checkpoint = *history.add_checkpoints();
  checkpoint.set_kind("dump");
  checkpoint.set_image(image);
  checkpoint.set_exists(exists);
  checkpoint.set_copy(copy);
}

v1::ListCheckpointsResponse TwoImages() {
  v1::ListCheckpointsResponse history;
  AddDump(history, "/i/1", true);
  AddDump(history, "/i/gone", false);
  history.add_checkpoints()->set_kind("suspend");
  AddDump(history, "/i/2", true);
  return history;
}

TEST(PlanRestart, NewestImageComesFirst) {
  for (const v1::Job& job : {Ended("dumped"), Ended("lost"), Ended("exited", 137)}) {
    auto plan = PlanRestart(job, TwoImages());
    ASSERT_TRUE(plan) << plan.error().ToString();
    EXPECT_THAT(plan->images, ElementsAre("/i/2", "/i/1")) << job.state();
  }
}

TEST(PlanRestart, CopyInARepositoryReplacesADeletedImage) {
  v1::ListCheckpointsResponse history;
  AddDump(history, "/i/1", false, "fleet/one");
  auto plan = PlanRestart(Ended("dumped"), history);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->images, ElementsAre("fleet/one"));
}

TEST(PlanRestart, FinishedProgramStartsAnew) {
  auto plan = PlanRestart(Ended("exited", 0), TwoImages());
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->images, IsEmpty());
  EXPECT_THAT(plan->why, HasSubstr("finished with code 0"));
}

TEST(PlanRestart, ProgramThatWasNeverDumpedStartsAnew) {
  v1::ListCheckpointsResponse history;
  history.add_checkpoints()->set_kind("suspend");
  auto plan = PlanRestart(Ended("exited", 1), history);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->images, IsEmpty());
  EXPECT_THAT(plan->why, HasSubstr("without an image"));
}

TEST(PlanRestart, LostImagesAreAnError) {
  v1::ListCheckpointsResponse history;
  AddDump(history, "/i/1", false);
  for (const v1::Job& job : {Ended("dumped"), Ended("lost"), Ended("exited", 1)}) {
    auto plan = PlanRestart(job, history);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::kNotFound);
    EXPECT_THAT(plan.error().hint, HasSubstr("stasis delete a"));
  }
}

TEST(PlanRestart, RunningAndMovedJobsAreRefused) {
  v1::Job moved = Ended("dumped");
  moved.set_moved_to("b/a");
  v1::Job perhaps = Ended("dumped");
  perhaps.set_perhaps_moved_to("b/a");
  for (const v1::Job& job : {Ended("running"), Ended("suspended"), moved, perhaps}) {
    auto plan = PlanRestart(job, TwoImages());
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Code::kFailedPrecondition);
  }
}

TEST(ImagesToPrune, NewestAreKept) {
  v1::ListCheckpointsResponse history;
  for (const char* image : {"/i/1", "/i/2", "/i/3", "/i/4"}) AddDump(history, image, true);
  AddDump(history, "/i/gone", false);
  EXPECT_THAT(ImagesToPrune(history, "/i/4", 1), ElementsAre("/i/3", "/i/2", "/i/1"));
  EXPECT_THAT(ImagesToPrune(history, "/i/4", 3), ElementsAre("/i/1"));
  EXPECT_THAT(ImagesToPrune(history, "/i/4", 4), IsEmpty());
}

TEST(ImagesToPrune, ImageThatWasJustWrittenIsNeverDeleted) {
  v1::ListCheckpointsResponse history;
  AddDump(history, "/i/new", true);
  AddDump(history, "/i/later", true);  // by another command
  AddDump(history, "/i/new", true);
  EXPECT_THAT(ImagesToPrune(history, "/i/new", 1), ElementsAre("/i/later"));
}

// Restores with these errors, one for each image.
struct Attempts {
  std::vector<Error> errors;
  std::vector<std::string> tried = {};
  std::string notes = {};

  Result<std::string> Run() {
    std::vector<std::string> images;
    for (size_t i = errors.size(); i > 0; --i) images.push_back("/i/" + std::to_string(i));
    return RestoreNewest(
        images,
        [&](const std::string& image) -> Result<std::string> {
          tried.push_back(image);
          const Error& error = errors[tried.size() - 1];
          if (error.code != Code::kOk) return Fail(error);
          return image;
        },
        [&](const std::string& text) { notes += text; });
  }
};

Error Of(Code code, bool not_undone = false) {
  return Error{code, Domain::kStasis, 0, "it failed", "", {}, not_undone};
}

TEST(RestoreNewest, TriesTheImageBefore) {
  for (Code code : {Code::kDataLoss, Code::kNotFound, Code::kFailedPrecondition, Code::kInternal}) {
    Attempts attempts{{Of(code), Of(Code::kOk), Of(Code::kOk)}};
    auto restored = attempts.Run();
    ASSERT_TRUE(restored);
    EXPECT_EQ(*restored, "/i/2");
    EXPECT_THAT(attempts.tried, ElementsAre("/i/3", "/i/2"));
    EXPECT_THAT(attempts.notes, HasSubstr("it failed"));
    EXPECT_THAT(attempts.notes, HasSubstr("/i/2"));
  }
}

TEST(RestoreNewest, LastErrorIsReturned) {
  Attempts attempts{{Of(Code::kDataLoss), Of(Code::kNotFound)}};
  auto restored = attempts.Run();
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kNotFound);
  EXPECT_EQ(attempts.tried.size(), 2u);
}

TEST(RestoreNewest, OlderImageIsNotTriedIfTheImageIsNotAtFault) {
  for (const Error& error :
       {Of(Code::kResourceExhausted), Of(Code::kCancelled), Of(Code::kAborted),
        Of(Code::kPermissionDenied), Of(Code::kAlreadyExists), Of(Code::kDataLoss, true)}) {
    Attempts attempts{{error, Of(Code::kOk)}};
    EXPECT_FALSE(attempts.Run());
    EXPECT_THAT(attempts.tried, ElementsAre("/i/2"));
    EXPECT_EQ(attempts.notes, "");
  }
}

}  // namespace
}  // namespace stasis::cli
