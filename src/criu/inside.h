// CRIU in a pid namespace other than ours.
//
// CRIU looks the folders that it is told up below /proc/PID/fd of whoever made its socket pair
// (SO_PEERCRED), and a process of ours has no number in its namespace. So what becomes CRIU makes
// the pair itself, has the folders among its own descriptors, and hands us one end:
// inside_protocol.h.
#pragma once

#include <map>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "criu/client.h"

namespace stasis::criu {

// How a CRIU inside is started by another program, and then met. Not thread safe.
class Inside {
 public:
  // The folders must be those of the request that the session will be asked.
  static Result<Inside> Make(const std::string& criu_path, const std::string& images_dir,
                             const std::string& log_path);

  const SwrkCommand& command() const { return command_; }
  // Descriptors, number there -> ours; to be passed on until Accept is called.
  std::map<int, int> fds() const;

  // Waits until CRIU is there.
  Result<Session> Accept(const Deadline& deadline);

  // Starts CRIU in the pid and mount namespaces of `member`, as a child of the init there: the
  // namespace does not end before CRIU does. `extra_fds` as in Session::Spawn.
  static Result<Session> Spawn(const std::string& criu_path, const DumpRequest& request,
                               process::HostPid member, const std::map<int, int>& extra_fds,
                               const Deadline& deadline);

 private:
  Inside() = default;

  SwrkCommand command_;
  UniqueFd ours_, its_;  // of the hand-over
  UniqueFd images_, log_folder_;
};

}  // namespace stasis::criu
