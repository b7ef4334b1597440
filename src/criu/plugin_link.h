// The daemon's end of the connection to CRIU's plugin (plugin_protocol.h). The connection is a
// lease: it ends when CRIU exits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::criu {

struct PluginRequest {
  enum class Kind {
    kBeginDump,
    kBeginRestore,
    kPause,
    kCheck,
    kCommit,
    kRestored,
    kResume,
    kRunning,
    kEnd,
    kComplete,
  };
  Kind kind = Kind::kEnd;
  process::HostPid pid;
  // kPause: the program will be left running. kEnd: the program stays alive.
  bool stays = false;
  // kPause: the caller of CRIU waits for CRIU to exit. The program may therefore run before its GPU
  // data is complete. A kComplete request follows.
  bool early = false;
  // kBeginRestore: the user's GPU map; the numbers N of the devices /dev/nvidiaN that the
  // container's control group does not permit; and whether it forbids /dev/nvidia-uvm.
  std::string gpu_map = {};
  std::vector<int> refused_minors = {};
  bool refuses_uvm = false;
};

class PluginLink {
 public:
  virtual ~PluginLink() = default;

  // Waits for the next request. Returns kUnavailable when CRIU has exited and thus no longer stops
  // the program, and kDeadlineExceeded at the deadline.
  virtual Result<PluginRequest> Next(const Deadline& deadline) = 0;
  // Returns true if the last request has no answer yet. Each request is answered once. If CRIU has
  // exited, the answer is lost, and Next() returns kUnavailable.
  virtual bool pending() const = 0;
  virtual void Accept() = 0;
  virtual void AnswerNoGpu() = 0;
  virtual void Refuse(const Error& why) = 0;
  // Asks CRIU to let these threads of stopped processes run, and waits until they run. The next
  // answer stops them again. Returns kUnavailable if CRIU has exited.
  virtual Status LetRun(const std::vector<pid_t>& threads, const Deadline& deadline) = 0;
  // Waits until CRIU has exited. Safe to call from any thread.
  virtual Status AwaitExit(const Deadline& deadline) = 0;
  // A descriptor that is readable once CRIU has exited, for poll(2). Safe to use from any thread.
  virtual int exit_fd() const = 0;
  // A descriptor that is readable when Next() returns at once.
  virtual int request_fd() const = 0;

  // The descriptor of CRIU's image folder. Valid after the first request.
  virtual int images_fd() const = 0;
  // The CRIU process.
  virtual process::HostPid criu() const = 0;
};

// Takes a connected socket. Returns kUnavailable if its peer has exited already.
Result<std::unique_ptr<PluginLink>> MakePluginLink(UniqueFd socket);
// Takes one end of a socket pair, whose other end the process `criu` has.
Result<std::unique_ptr<PluginLink>> MakePluginLink(UniqueFd socket, process::HostPid criu);

}  // namespace stasis::criu
