// What softgpu's tests share. A test drives the real library; where it needs other processes, it
// starts this same program again in a role, and talks with it in lines.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "device/cuda/driver_functions.h"

namespace softgpu::test {

using namespace stasis::cuda;

std::string Name(CUresult result);
#define EXPECT_CU(expected, call) EXPECT_EQ(Name(expected), Name(call)) << #call
#define ASSERT_CU(expected, call) ASSERT_EQ(Name(expected), Name(call)) << #call
#define EXPECT_OK(call) EXPECT_CU(CUDA_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_CU(CUDA_SUCCESS, call)

// The example image (softgpu/example), as built.
std::string ExampleImage();

// The free memory of the current context's device.
size_t FreeBytes();

// A context of its own for each test of a suite.
class WithContext : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  CUcontext context_ = nullptr;
};

// A role: what the program does when it is started as `--role NAME ARG…`. Returns the exit code.
using Role = int (*)(const std::vector<std::string>& arguments);
struct RegisterRole {
  RegisterRole(const char* name, Role role);
};
#define SOFTGPU_ROLE(name)                                                        \
  static int Role_##name(const std::vector<std::string>& arguments);              \
  static const ::softgpu::test::RegisterRole register_##name(#name, Role_##name); \
  static int Role_##name([[maybe_unused]] const std::vector<std::string>& arguments)

// In a role: a line to the test, and the next line from it ("" when it is gone).
void Say(const std::string& line);
std::string Hear();
// In a role: ends it with a message when a call fails.
void Must(CUresult result, const char* what);
#define MUST(call) ::softgpu::test::Must(call, #call)

class Child {
 public:
  struct Options {
    std::vector<std::string> environment;  // "NAME=VALUE"
    int pass_fd = -1;                      // appears as 3
    bool own_session = false;              // and no ties to ours but the two pipes
  };
  explicit Child(const std::string& role, const std::vector<std::string>& arguments = {});
  Child(const std::string& role, const std::vector<std::string>& arguments, Options options);
  ~Child();
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // The next line; "" when the child has ended.
  std::string Hear();
  void Say(const std::string& line);
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  void Kill(int signal);
  // The wait status; negative signal number or exit code.
  int Wait();

 private:
  void Start(const std::string& role, const std::vector<std::string>& arguments, Options options);

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

// Runs a role to its end; the exit code, or minus the signal that ended it.
int RunRole(const std::string& role, const std::vector<std::string>& arguments = {});
int RunRole(const std::string& role, const std::vector<std::string>& arguments,
            Child::Options options);

// Lines of /proc/PID/maps and links of /proc/PID/fd that begin with the device prefix.
int DeviceFiles(pid_t pid);

// Polls until it holds or the time is over.
bool Eventually(const std::function<bool()>& holds, int timeout_ms = 60000);

}  // namespace softgpu::test
