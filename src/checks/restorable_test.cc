#include "checks/restorable.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/page_size.h"
#include "base/secret.h"
#include "checks/before_dump.h"
#include "checks/image_trust.h"
#include "gpu_state/testing/world.h"
#include "store/image_writer.h"
#include "store/origin.h"

namespace stasis::checks {
namespace {

using fakes::World;

// An image of one process that needs `file`.
struct TestImage {
  explicit TestImage(World& world) : file(world.services.paths.data + "/library.so") {
    std::ofstream(file) << "library";
    manifest.software.driver_kind = "fake";
    manifest.software.driver_version = "1";
    manifest.gpus.push_back({fakes::GpuA().value, "model", 80ull << 30, 1 << 20});
    store::Process process;
    process.pid = 0x7ffffff0 - 1;  // more than pid_max
    process.namespace_pid = process.pid;
    process.recorded_state = store::GpuState::kRunning;
    process.gpu_uuids = {fakes::GpuA().value};
    manifest.processes.push_back(process);
    manifest.job.uid = ::geteuid();
    manifest.job.root_pid = process.pid;
    manifest.required_files.push_back({file, 7, {}});
  }
  Result<std::unique_ptr<store::ImageReader>> Write(World& world) {
    STASIS_ASSIGN(auto writer, store::ImageWriter::Begin(world.services.paths.images(), "image"));
    store::CommitOptions options;
    STASIS_ASSIGN(options.origin, store::OriginKeyOf(world.services.paths));
    STASIS_TRY(writer->Commit(manifest, options));
    return store::ImageReader::Open(world.services.paths.images() + "/image");
  }
  std::string file;
  store::Manifest manifest;
};

struct Case {
  const char* name;
  std::function<void(World&, TestImage&)> arrange;
  Code code;  // kOk: restorable
  const char* message = "";
  device::GpuMap map = {};
  bool held = false;
};

#if defined(__aarch64__)
constexpr bool kIsArm64 = true;
#else
constexpr bool kIsArm64 = false;
#endif

const Case kCases[] = {
    {"AllIsThere", [](World&, TestImage&) {}, Code::kOk},
    {"OfX8664OrArm64",
     [](World&, TestImage& image) {
       image.manifest.host.machine = kIsArm64 ? "x86_64" : "aarch64";
     },
     Code::kUnimplemented,
     kIsArm64 ? "made on x86_64, and this machine is aarch64"
              : "made on aarch64, and this machine is x86_64"},
    {"OfA32BitShell",
     [](World&, TestImage& image) { image.manifest.host.machine = kIsArm64 ? "armv8l" : "i686"; },
     Code::kOk},
    {"OfOtherPages",
     [](World&, TestImage& image) { image.manifest.host.page_bytes = 3 * PageBytes(); },
     Code::kUnimplemented, "this kernel's have"},
    {"OfTheSamePages",
     [](World&, TestImage& image) { image.manifest.host.page_bytes = PageBytes(); }, Code::kOk},
    {"FileMissing", [](World&, TestImage& image) { ::unlink(image.file.c_str()); }, Code::kNotFound,
     "which is missing"},
    {"FileOfAnotherSize",
     [](World&, TestImage& image) { std::ofstream(image.file) << "another library"; },
     Code::kFailedPrecondition, "has 15 bytes, but had 7"},
    {"PidTaken",
     [](World&, TestImage& image) {
       image.manifest.processes[0].pid = image.manifest.processes[0].namespace_pid = ::getpid();
     },
     Code::kAborted, "is taken by"},
    {"NoDriver",
     [](World& world, TestImage&) {
       world.device->driver.can_checkpoint = false;
       world.device->driver.why_not = "it is too old";
     },
     Code::kUnimplemented, "it is too old"},
    {"AnotherDriver", [](World& world, TestImage&) { world.device->driver.version = "2"; },
     Code::kUnimplemented, "made with driver fake 1"},
    {"GpuMissing",
     [](World& world, TestImage&) { world.device->gpus.erase(world.device->gpus.begin()); },
     Code::kUnimplemented, "is not in this machine"},
    {"GpuMissingButMapped",
     [](World& world, TestImage&) { world.device->gpus.erase(world.device->gpus.begin()); },
     Code::kOk,
     "",
     {{fakes::GpuA(), fakes::GpuB()}}},
    {"GpuOfAnotherModel", [](World& world, TestImage&) { world.device->gpus[0].name = "other"; },
     Code::kUnimplemented, "the program ran on model"},
    {"GpuFull", [](World& world, TestImage&) { world.device->gpus[0].free_bytes = 1; },
     Code::kResourceExhausted, "MiB free"},
    {"RangesAreLargerThanTheGpu",
     [](World&, TestImage& image) {
       image.manifest.processes[0].gpu_uuids.clear();
       store::DeviceRange range;
       range.address = 0x7f0000000000;
       range.size_bytes = 1ull << 40;
       range.pid = image.manifest.processes[0].pid;
       range.runs.push_back({store::UnitRun::kZeros, 0, 1u << 19});
       image.manifest.ranges.push_back(range);
     },
     Code::kResourceExhausted, "needs 1048576 MiB"},
    {"FileIsADevice",
     [](World&, TestImage& image) {
       image.manifest.required_files[0] = {"/dev/null", 0, "\x01"};
     },
     Code::kFailedPrecondition, "is not a regular file"},
    {"PidTakenButHeld",
     [](World&, TestImage& image) {
       image.manifest.processes[0].pid = image.manifest.processes[0].namespace_pid = ::getpid();
     },
     Code::kOk,
     "",
     {},
     true},
    {"GpuUnused",
     [](World& world, TestImage& image) {
       image.manifest.processes[0].gpu_uuids.clear();
       world.device->gpus[0].free_bytes = 1;
     },
     Code::kOk},
};

class RestorableTest : public testing::TestWithParam<Case> {};

TEST_P(RestorableTest, ChecksTheMachine) {
  World world(1);
  TestImage image(world);
  GetParam().arrange(world, image);
  auto reader = image.Write(world);
  ASSERT_TRUE(reader) << reader.error().ToString();
  Status found = CheckRestorable(world.services, **reader, GetParam().map, /*new_pidns=*/false,
                                 GetParam().held);
  EXPECT_EQ(found ? Code::kOk : found.error().code, GetParam().code)
      << (found ? "" : found.error().ToString());
  if (!found) {
    EXPECT_NE(found.error().message.find(GetParam().message), std::string::npos)
        << found.error().message;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RestorableTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ImageTrustTest, EachConditionIsChecked) {
  World world(1);
  TestImage image(world);
  auto reader = image.Write(world);
  ASSERT_TRUE(reader) << reader.error().ToString();
  const std::string folder = world.services.paths.images() + "/image";
  const Caller caller = Caller::Self();
  const Paths& paths = world.services.paths;
  EXPECT_TRUE(CheckImageTrust(**reader, caller, paths, false));

  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  Status writable = CheckImageTrust(**reader, caller, paths, false);
  ASSERT_FALSE(writable);
  EXPECT_NE(writable.error().message.find("can be written by users other"), std::string::npos);
  EXPECT_TRUE(CheckImageTrust(**reader, caller, paths, /*trusted=*/true));
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);

  Paths elsewhere = paths;
  elsewhere.data = paths.data + "/elsewhere";
  ASSERT_TRUE(MakeDirs(elsewhere.data));
  Status foreign = CheckImageTrust(**reader, caller, elsewhere, false);
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().message.find("was not written by this installation"),
            std::string::npos);
  EXPECT_TRUE(CheckImageTrust(**reader, caller, elsewhere, /*trusted=*/true));

  Caller other = caller;
  other.uid = 12345;
  Status user = CheckImageTrust(**reader, other, paths, /*trusted=*/true);
  ASSERT_FALSE(user) << "not even a trusted image of another user";
  EXPECT_EQ(user.error().code, Code::kPermissionDenied);
}

TEST(ImageTrustTest, ARepositoryIsCheckedBeforeThePull) {
  store::Manifest manifest;
  Caller root, user;
  user.uid = 1000;
  manifest.job.uid = 1000;
  repository::Registration fleet;
  fleet.name = "fleet";
  fleet.location = "/mnt/fleet";
  const auto error = [&](const Caller& caller, bool trusted) {
    const Status status = CheckRemoteTrust(manifest, "llama", fleet, caller, trusted);
    return status ? std::string() : status.error().ToString() + " " + status.error().hint;
  };
  EXPECT_NE(error(user, false).find("stasis repo remove fleet"), std::string::npos);
  EXPECT_EQ(error(user, true), "");
  fleet.trusted = true;
  EXPECT_EQ(error(user, false), "");
  EXPECT_NE(error(root, false).find("a program of user 1000"), std::string::npos);
  EXPECT_EQ(error(root, true), "");
  user.uid = 1001;
  EXPECT_NE(error(user, true).find("you are user 1001"), std::string::npos);
  user.uid = 1000;
  fleet.name = fleet.location;  // not added
  fleet.trusted = false;
  EXPECT_NE(error(user, false).find("stasis repo add"), std::string::npos);
}

TEST(ImageSpaceTest, CarriedBytesCountWithoutAnEarlierImage) {
  World world(1);
  auto survey = SurveyTarget(world.services, {"target", "", world.program.root()});
  ASSERT_TRUE(survey);
  const std::string store = world.services.paths.images();
  EXPECT_TRUE(CheckImageSpace(world.services, *survey, store, false, 0));
  survey->device_processes[0].device_bytes = 1ull << 60;
  Status full = CheckImageSpace(world.services, *survey, store, false, 1ull << 60);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kResourceExhausted) << full.error().ToString();
}

}  // namespace
}  // namespace stasis::checks
