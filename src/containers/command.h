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
  // Returns what the command said about its failure, in one line; if it said nothing, how it ended.
  std::string Reason() const;
};

struct CommandOptions {
  Deadline deadline;
  // Output goes to this file, which is opened for appending, and not into CommandOutput::out. A
  // container that the command starts inherits it.
  std::string output_file;
};

// An interface, so that the code above it is tested without a runtime.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;

  // Returns the path of a program, searched for in the folders of `path` as in PATH; empty: in this
  // process's PATH and then in the usual folders. Returns an empty string if there is none.
  virtual std::string Find(const std::string& program, const std::string& path = "") = 0;

  // Runs a command to its end. argv[0] is searched for as above: kNotFound if there is none. A
  // command that fails is no error. kDeadlineExceeded if it does not end in time; its process group
  // is then killed. kResourceExhausted if it prints more than kMaxOutputBytes.
  virtual Result<CommandOutput> Run(const std::vector<std::string>& argv,
                                    const CommandOptions& options) = 0;
};

inline constexpr size_t kMaxOutputBytes = 32u << 20;

// Runs real commands. They get an allow-list of this process's environment: PATH, HOME, and the
// variables that choose a runtime's configuration and sockets.
std::unique_ptr<CommandRunner> MakeCommandRunner();

// Runs a command that has to succeed, and returns its output. The error of a command that fails is
// kUnavailable with its reason.
Result<std::string> RunOk(CommandRunner& runner, const std::vector<std::string>& argv,
                          const Deadline& deadline);

}  // namespace stasis::containers
