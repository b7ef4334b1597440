#include "testing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace softgpu::test {
namespace {

constexpr int kAnswerTimeoutMs = 60000;

std::map<std::string, Role>& Roles() {
  static std::map<std::string, Role> roles;
  return roles;
}

std::string ReadLine(int fd, int timeout_ms) {
  std::string line;
  for (char c;;) {
    pollfd ready{fd, POLLIN, 0};
    if (timeout_ms >= 0 && poll(&ready, 1, timeout_ms) == 0) return "(no answer)";
    ssize_t got = read(fd, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || c == '\n') return line;
    line += c;
  }
}

void WriteLine(int fd, const std::string& line) {
  std::string text = line + "\n";
  if (write(fd, text.data(), text.size()) != ssize_t(text.size()))
    return;  // the child is gone; Hear() reports it
}

}  // namespace

std::string ExampleImage() { return SOFTGPU_EXAMPLE_IMAGE; }

RegisterRole::RegisterRole(const char* name, Role role) { Roles()[name] = role; }

void Say(const std::string& line) { WriteLine(1, line); }
std::string Hear() { return ReadLine(0, -1); }

void Must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  Say(std::string(what) + ": " + Name(result));
  _exit(99);
}

Child::Child(const std::string& role, const std::vector<std::string>& arguments) {
  Start(role, arguments, {});
}
Child::Child(const std::string& role, const std::vector<std::string>& arguments, Options options) {
  Start(role, arguments, std::move(options));
}

void Child::Start(const std::string& role, const std::vector<std::string>& arguments,
                  Options options) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) abort();
  std::vector<std::string> words{"softgpu_test", "--role", role};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // SAFETY: uses only functions allowed after fork in a process with threads, and setenv, which
    // no other thread uses.
    if (options.own_session) {
      setsid();
    } else {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
    }
    dup2(to[0], 0);
    dup2(from[1], 1);
    if (options.own_session) {
      int null = open("/dev/null", O_WRONLY);
      dup2(null, 2);
    }
    if (options.pass_fd >= 0 && options.pass_fd != 3) dup2(options.pass_fd, 3);
    if (options.pass_fd == 3) fcntl(3, F_SETFD, 0);
    close_range(options.pass_fd >= 0 ? 4 : 3, ~0U, 0);
    for (std::string& item : options.environment) putenv(item.data());
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  in_ = to[1];
  out_ = from[0];
}

Child::~Child() {
  if (pid_ > 0) {
    Kill(SIGKILL);
    Wait();
  }
  close(in_);
  close(out_);
}

std::string Child::Hear() { return ReadLine(out_, kAnswerTimeoutMs); }
void Child::Say(const std::string& line) { WriteLine(in_, line); }
void Child::Kill(int signal) { kill(pid_, signal); }

int Child::Wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int RunRole(const std::string& role, const std::vector<std::string>& arguments) {
  return RunRole(role, arguments, {});
}

int RunRole(const std::string& role, const std::vector<std::string>& arguments,
            Child::Options options) {
  Child child(role, arguments, std::move(options));
  for (std::string line; !(line = child.Hear()).empty();) fprintf(stderr, "  %s\n", line.c_str());
  return child.Wait();
}

int DeviceFiles(pid_t pid) {
  std::string process = "/proc/" + std::to_string(pid);
  int count = 0;
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);) count += line.find(" /softgpu/") != line.npos;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().starts_with("/softgpu/");
  }
  return count;
}

bool Eventually(const std::function<bool()>& holds, int timeout_ms) {
  for (int waited = 0; waited <= timeout_ms; waited += 5) {
    if (holds()) return true;
    usleep(5000);
  }
  return false;
}

}  // namespace softgpu::test

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc >= 3 && strcmp(argv[1], "--role") == 0) {
    auto role = softgpu::test::Roles().find(argv[2]);
    if (role == softgpu::test::Roles().end()) return 98;
    return role->second({argv + 3, argv + argc});
  }
  ::testing::InitGoogleTest(&argc, argv);
  // The tests use separate devices.
  char folder[] = "/tmp/softgpu-test-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 97;
  setenv("SOFTGPU_DIR", folder, 1);
  setenv("SOFTGPU_DEVICES", "2", 1);
  setenv("SOFTGPU_MEMORY", "256M", 1);
  setenv("SOFTGPU_CONTEXT_MEMORY", "4M", 1);
  for (const char* name :
       {"SOFTGPU_FAULT", "SOFTGPU_BROKER", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
    unsetenv(name);
  int result = RUN_ALL_TESTS();
  std::filesystem::remove_all(folder);
  return result;
}
