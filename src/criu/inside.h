// CRIU in another pid namespace.
//
// CRIU looks up the directories of a request below /proc/PID/fd of the process that created its
// socket pair (SO_PEERCRED). This process has no pid in CRIU's namespace. Therefore the process
// that becomes CRIU creates the socket pair itself, holds the directories open, and sends one end
// of the pair to this process (inside_protocol.h).
#pragma once

#include <map>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "criu/client.h"

namespace stasis::criu {

// Prepares a CRIU that another program starts, and connects to it. Not thread-safe.
class Inside {
 public:
  // `plugins` is as for MakeSwrkCommand. `images_dir` and `log_path` must be those of the request
  // that CRIU will get.
  static Result<Inside> Make(const std::string& criu_path, const std::string& plugins,
                             const std::string& images_dir, const std::string& log_path);

  // The command for a restore.
  const SwrkCommand& command() const { return command_; }
  // Returns the descriptors that CRIU must inherit, by their numbers in CRIU. They stay open until
  // Accept().
  std::map<int, int> fds() const;

  // Waits until CRIU is ready.
  Result<Session> Accept(const Deadline& deadline);

  // Starts CRIU in the pid and mount namespaces of `member`, as a child of the init process there,
  // so that the namespace outlives CRIU. Needs CAP_SYS_ADMIN, unless ipc::PidnsInit::Get() is that
  // process. `extra_fds` is as in Session::Spawn.
  static Result<Session> Spawn(const std::string& criu_path, const DumpRequest& request,
                               process::HostPid member, const std::map<int, int>& extra_fds,
                               const Deadline& deadline);

 private:
  Inside() = default;

  SwrkCommand command_;
  UniqueFd ours_, its_;  // the two ends of the hand-over socket
  UniqueFd images_, log_folder_;
};

}  // namespace stasis::criu
