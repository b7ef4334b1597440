// Runs the commands of a conformance run, each with a time limit.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::conformance {

struct Ran {
  int code = -1;    // exit code; -1 if it was ended by a signal or could not be started
  std::string how;  // "exited with code 3", "did not end in 60 s and was killed"
  std::string out;  // at most the last 64 KiB of each
  std::string err;
};

// Not thread-safe.
class Commands {
 public:
  virtual ~Commands() = default;

  // Run `stasis` or hip_probe. If the command does not end in time, it is interrupted, then killed.
  virtual Ran Stasis(const std::vector<std::string>& arguments,
                     std::chrono::milliseconds limit) = 0;
  virtual Ran Probe(const std::vector<std::string>& arguments, std::chrono::milliseconds limit) = 0;
  // The path of hip_probe.
  virtual std::string probe() const = 0;

  // Waits until the log of the program has `count` more lines that begin with `prefix` than now.
  // Returns kDataLoss with the program's message if the program reports an error, and
  // kDeadlineExceeded with the log's last lines.
  virtual Status AwaitLines(const std::string& log, const std::string& prefix, int count,
                            std::chrono::milliseconds limit) = 0;

  // All further commands use this library of the driver.
  virtual void UseLibrary(const std::string& path) = 0;
  // Opens a file for reading and writing.
  virtual Status CanOpen(const std::string& path) = 0;
  // Returns the tail of CRIU's log of the last failed dump or restore; empty if there is none.
  virtual std::string CriuLog() = 0;
  // Kills a program that did not end, whatever its state.
  virtual void Kill(int pid) = 0;
  // Removes the folder of this run. Returns an error that names what is left.
  virtual Status RemoveAll() = 0;
};

// Makes a folder for jobs and images, and runs the programs of the installation `root` in it
// without the daemon. The destructor calls RemoveAll().
Result<std::unique_ptr<Commands>> MakeCommands(const std::string& root);

}  // namespace stasis::conformance
