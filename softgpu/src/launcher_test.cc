#include <stdio.h>
#include <sys/wait.h>

#include "testing.h"

namespace softgpu::test {
namespace {

struct Ran {
  int code;
  std::string out;
};

Ran Launch(const std::string& arguments) {
  FILE* pipe = popen((std::string(SOFTGPU_LAUNCHER) + " " + arguments + " 2>&1").c_str(), "r");
  std::string out;
  for (int c; (c = fgetc(pipe)) != EOF;) out += char(c);
  return {WEXITSTATUS(pclose(pipe)), out};
}

TEST(LauncherTest, SetsTheLibraryPathAndTheOptions) {
  Ran ran = Launch(
      "--devices 2 --memory 1G --dir /tmp/x --fault a=die -- sh -c "
      "'echo $SOFTGPU_DEVICES $SOFTGPU_MEMORY $SOFTGPU_DIR $SOFTGPU_FAULT $LD_LIBRARY_PATH'");
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(ran.out.starts_with("2 1G /tmp/x a=die /")) << ran.out;
  EXPECT_NE(ran.out.find("/lib/softgpu"), std::string::npos) << ran.out;
}

TEST(LauncherTest, ReturnsTheExitCodeOfItsCommandOrItsOwn) {
  EXPECT_EQ(Launch("-- sh -c 'exit 7'").code, 7);
  EXPECT_EQ(Launch("-- /nowhere").code, 127);
  EXPECT_EQ(Launch("").code, 2);
  EXPECT_EQ(Launch("--nonsense -- true").code, 2);
  EXPECT_EQ(Launch("--help").code, 0);
}

}  // namespace
}  // namespace softgpu::test
