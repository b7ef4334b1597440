// Helpers for softgpu's tests. Tests use the real library. For other processes, a test starts its
// own program again in a role and exchanges lines with it.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "abi/cuda/driver_functions.h"

namespace softgpu::test {

using namespace stasis::cuda;

inline constexpr size_t kMiB = 1 << 20;

std::string Name(CUresult result);
#define EXPECT_CU(expected, call) EXPECT_EQ(Name(expected), Name(call)) << #call
#define ASSERT_CU(expected, call) ASSERT_EQ(Name(expected), Name(call)) << #call
#define EXPECT_OK(call) EXPECT_CU(CUDA_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_CU(CUDA_SUCCESS, call)

// Returns the path of the built example image (softgpu/example).
std::string ExampleImage();

// Returns the free memory of the current context's device.
size_t FreeBytes();

// Gives each test a new context.
class WithContext : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  CUcontext context_ = nullptr;
};

// A role is the function that the program runs when it is started as `--role NAME ARG…`. It returns
// the exit code.
using Role = int (*)(const std::vector<std::string>& arguments);
struct RegisterRole {
  RegisterRole(const char* name, Role role);
};
#define SOFTGPU_ROLE(name)                                                        \
  static int Role_##name(const std::vector<std::string>& arguments);              \
  static const ::softgpu::test::RegisterRole register_##name(#name, Role_##name); \
  static int Role_##name([[maybe_unused]] const std::vector<std::string>& arguments)

// For roles: Say sends a line to the test, and Hear returns the next line from it ("" at
// end-of-file).
void Say(const std::string& line);
std::string Hear();
// For roles: exits with a message if a call failed.
void Must(CUresult result, const char* what);
#define MUST(call) ::softgpu::test::Must(call, #call)

class Child {
 public:
  struct Options {
    std::vector<std::string> environment;  // "NAME=VALUE"
    int pass_fd = -1;                      // becomes descriptor 3
    bool own_session = false;              // only the two pipes connect it to this process
  };
  explicit Child(const std::string& role, const std::vector<std::string>& arguments = {});
  Child(const std::string& role, const std::vector<std::string>& arguments, Options options);
  ~Child();
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // Returns the next line; "" if the child has ended.
  std::string Hear();
  void Say(const std::string& line);
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  void Kill(int signal);
  // Waits for the exit. Returns the exit code, or the negative signal number.
  int Wait();

 private:
  void Start(const std::string& role, const std::vector<std::string>& arguments, Options options);

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

// Runs a role to its end. Returns the exit code, or the negative signal number.
int RunRole(const std::string& role, const std::vector<std::string>& arguments = {});
int RunRole(const std::string& role, const std::vector<std::string>& arguments,
            Child::Options options);

// Counts lines of /proc/PID/maps and links of /proc/PID/fd with the device prefix.
int DeviceFiles(pid_t pid);

// Polls until the condition holds. Returns false at the timeout.
bool Eventually(const std::function<bool()>& holds, int timeout_ms = 60000);

}  // namespace softgpu::test
