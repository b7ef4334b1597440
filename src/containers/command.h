// Runs the commands of container runtimes: podman, runc, ctr.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::containers {

struct CommandOutput {
  int status = 0;  // of waitpid(2)
  std::string out;
  std::string err;

  bool ok() const { return status == 0; }
  // Returns one line about the failure: the last line of the command's output, or its exit status.
  std::string Reason() const;
};

struct CommandOptions {
  Deadline deadline;
  // If set, output is appended to this file instead of being returned in CommandOutput. The
  // command, and a container that it starts, get pipes as output: CRIU can checkpoint a container
  // with pipes, but not one that has opened a file outside of its mount namespace. A process
  // (output_main.cc) copies the output until all programs have closed the pipes. The input is
  // empty.
  std::string output_file;
  // Variables "NAME=VALUE" in addition to the usual environment.
  std::vector<std::string> variables = {};
};

// An interface, so that tests do not need a runtime.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;

  // Searches the folders of `path`, a list as in PATH, for a program and returns its path. If
  // `path` is empty, searches this process's PATH and then the usual folders. Returns an empty
  // string if the program is not found.
  virtual std::string Find(const std::string& program, const std::string& path = "") = 0;

  // Runs a command and waits for it to exit. Looks up argv[0] as Find() does. Returns an error if
  // the program is not found (kNotFound), if the command does not exit in time (kDeadlineExceeded;
  // its process group is killed), or if it prints more than kMaxOutputBytes (kResourceExhausted). A
  // non-zero exit status is not an error.
  virtual Result<CommandOutput> Run(const std::vector<std::string>& argv,
                                    const CommandOptions& options) = 0;
};

inline constexpr size_t kMaxOutputBytes = 32u << 20;

// Runs real commands. They get a part of this process's environment: PATH, HOME, and the variables
// that choose a runtime's configuration and sockets.
std::unique_ptr<CommandRunner> MakeCommandRunner();

// Runs a command that has to succeed, and returns its output. Returns kUnavailable with the reason
// if the command fails.
Result<std::string> RunOk(CommandRunner& runner, const std::vector<std::string>& argv,
                          const Deadline& deadline);

}  // namespace stasis::containers
