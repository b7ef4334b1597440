// CRIU's own plugin for AMD GPUs on a machine without such a GPU: CRIU loads it and asks it, and
// its error becomes a sentence.
#include <fcntl.h>

#include "base/install_layout.h"
#include "criu/testing.h"

namespace stasis::criu {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

class AmdPlugin : public WithCriu {};

bool Has(const std::vector<std::string>& list, const std::string& entry) {
  return std::find(list.begin(), list.end(), entry) != list.end();
}

TEST(SwrkCommandTest, ThePluginAndItsChecksAreForProgramsThatNeedThem) {
  ::setenv("KFD_FW_VER_CHECK", "0", 1);
  const auto with = MakeSwrkCommand("criu", "/plugins").env;
  const auto without = MakeSwrkCommand("criu").env;
  ::unsetenv("KFD_FW_VER_CHECK");
  EXPECT_TRUE(Has(with, "CRIU_LIBS_DIR=/plugins"));
  EXPECT_TRUE(Has(with, "KFD_FW_VER_CHECK=1"));
  EXPECT_FALSE(Has(with, "KFD_FW_VER_CHECK=0"));
  EXPECT_FALSE(Has(without, "CRIU_LIBS_DIR=/plugins"));
  EXPECT_FALSE(Has(without, "KFD_FW_VER_CHECK=1"));
}

TEST_F(AmdPlugin, SaysThatThereIsNoKfd) {
  const std::string folder = *InstallRoot() + "/lib/stasis/criu-amdgpu";
  if (!PathExists(folder + "/amdgpu_plugin.so")) {
    GTEST_SKIP() << "CRIU's plugin for AMD GPUs was not built (libdrm-dev)";
  }
  if (PathExists("/dev/kfd")) GTEST_SKIP() << "this machine has /dev/kfd";
  // CRIU asks its plugins about devices that it does not know.
  auto device = Open("/dev/fuse", O_RDWR);
  if (!device) GTEST_SKIP() << device.error().ToString();
  Target target({"memory"}, {{7, device->get()}});
  auto path = FindCriu(ChosenCriu());
  ASSERT_TRUE(IsOk(path));
  DumpRequest request = target.Dump();
  request.options.plugins = folder;
  auto session = Session::Spawn(*path, {}, folder);
  ASSERT_TRUE(IsOk(session));
  const Status dumped = session->Dump(request, nullptr, Soon());
  ASSERT_FALSE(dumped);
  EXPECT_EQ(dumped.error().message,
            "CRIU could not dump the tree: CRIU's plugin for AMD GPUs finds no /dev/kfd on this "
            "machine")
      << target.Log();
  EXPECT_EQ(dumped.error().code, Code::kUnimplemented);
  EXPECT_NE(dumped.error().hint.find("modprobe amdgpu"), std::string::npos);
  EXPECT_TRUE(target.Counts());
}

TEST_F(AmdPlugin, OtherProgramsDoNotLoadIt) {
  Target target({"memory"});
  DumpRequest request = target.Dump();
  request.options.log_level = 4;
  ASSERT_TRUE(IsOk(MustSpawn().Dump(request, nullptr, Soon())));
  EXPECT_EQ(target.Log().find("amdgpu_plugin"), std::string::npos);
}

}  // namespace
}  // namespace stasis::criu
