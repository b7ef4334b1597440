// A conversation with one `criu swrk`: a child process that serves one request over a socket pair
// and ends.
//
// Not thread safe. Who makes the socket pair must be the process that calls Dump or Restore: CRIU
// finds the log directory through /proc/PID/fd of the pair's maker (SO_PEERCRED).
//
// CRIU never dies with us, on purpose: when we are killed in the middle of a dump, it must live
// long enough to see that nobody answers `post-dump`, and to let the tasks run again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/subprocess.h"
#include "criu/end.h"
#include "criu/options.h"
#include "process/proc.h"

namespace stasis::criu {

namespace rpc {
class Opts;
class Request;
class Response;
}  // namespace rpc

struct Version {
  int major = 0;
  int minor = 0;
  int sublevel = 0;
  auto operator<=>(const Version&) const = default;
};
std::string ToString(const Version& version);

// The moments at which CRIU asks whether to go on.
enum class Moment {
  kPreDump,
  kNetworkLock,
  kNetworkUnlock,
  kQueryExternalFiles,
  kPostDump,  // images complete, tasks stopped; refused: they run on. Accepted: they are killed
  kPreRestore,
  kSetupNamespaces,
  kPostSetupNamespaces,
  kPostRestore,  // the tree exists, stopped; refused: it is killed. The pid is known from here on
  kPreResume,
  kPostResume,
  kOrphanPtsMaster,  // brings the master side of a new terminal
  kStatusReady,
  kOther,
};

struct Notification {
  Moment moment = Moment::kOther;
  std::string name;      // CRIU's word for it
  process::HostPid pid;  // of the root of a tree being restored, where known; else 0
  UniqueFd fd;
};

// Answers a notification; an error refuses, and is what the request then fails with.
using NotifyHandler = std::function<Status(Notification&)>;

// How to start `criu swrk`, for us or for another program (the shim).
struct SwrkCommand {
  static constexpr int kSocketFd = 3;  // where CRIU finds its end of the socket pair
  std::vector<std::string> argv;
  std::vector<std::string> env;
};
SwrkCommand MakeSwrkCommand(const std::string& criu_path);

struct SocketPair {
  UniqueFd ours;
  UniqueFd criu;
};
Result<SocketPair> MakeSocketPair();

struct DumpRequest {
  process::HostPid pid;    // the root of the tree
  std::string images_dir;  // exists
  std::string log_path;    // outside of images_dir; its directory exists
  bool leave_running = false;
  Options options;
};

// A descriptor that replaces one that was dumped as external.
struct InheritFd {
  std::string key;  // CRIU's name of what is replaced, e.g. "pipe:[4711]"
  int fd = -1;      // its number in the CRIU process
};

struct RestoreRequest {
  std::string images_dir;
  std::string log_path;
  Options options;
  std::vector<InheritFd> inherit;
  bool as_sibling = false;  // the root becomes a child of CRIU's parent, not of CRIU
};

class Session {
 public:
  // Starts CRIU as our child, in a session of its own. `extra_fds` (number there -> ours; numbers
  // from 10 on) stay open in it until it ends: locks, and what is inherited by a restore.
  static Result<Session> Spawn(const std::string& criu_path,
                               const std::map<int, int>& extra_fds = {});
  // CRIU was started by another program. `criu` may be 0 when it is not known.
  static Session OverSocket(UniqueFd socket, process::HostPid criu = {});
  // It runs in another pid namespace and has made the socket pair itself: see inside.h. Process ids
  // are ours here too, in requests, notifications and answers.
  static Result<Session> Inside(UniqueFd socket);

  // Each of these is called once, and ends the conversation. The deadline is for CRIU, not for the
  // handler, and past it CRIU is ended as end.h says: kDeadlineExceeded. Other errors are CRIU's
  // last words made readable, or the handler's own. `not_undone`: the program did not survive the
  // attempt.
  Status Dump(const DumpRequest& request, const NotifyHandler& handler, const Deadline& deadline);
  // Returns the pid of the root.
  Result<process::HostPid> Restore(const RestoreRequest& request, const NotifyHandler& handler,
                                   const Deadline& deadline);
  Result<Version> GetVersion(const Deadline& deadline);
  // CRIU's own look at the machine.
  Status Check(const std::string& log_path, const Deadline& deadline);

  process::HostPid criu_pid() const { return criu_pid_; }
  void set_patience(const Patience& patience) { patience_ = patience; }

 private:
  Session() = default;
  void SetPlaces(const UniqueFd& images, const UniqueFd& log_folder, const std::string& log_name,
                 rpc::Opts* opts) const;
  // What CRIU calls process `pid`, and back; 0 stays 0.
  Result<pid_t> ToCriu(process::HostPid pid) const;
  Result<process::HostPid> FromCriu(pid_t pid);
  Status Send(const rpc::Request& request);
  // Serves notifications until the answer to the request comes.
  Result<rpc::Response> Converse(const rpc::Request& request, const NotifyHandler& handler,
                                 const Deadline& deadline);
  Result<rpc::Response> Receive(UniqueFd* fd, const Deadline& deadline);
  // Ends the conversation; one that CRIU broke off gets an error with what its log knows.
  Result<rpc::Response> Conclude(Result<rpc::Response> response, const std::string& log_path,
                                 const char* what);
  // CRIU ends by itself now. How it did, where it is our child.
  std::string Reap();

  UniqueFd socket_;
  std::optional<Subprocess> child_;
  process::HostPid criu_pid_;
  UniqueFd criu_pidfd_;
  bool inside_ = false;
  uint64_t pid_namespace_ = 0;                 // CRIU's, when it is inside
  std::pair<pid_t, process::HostPid> root_{};  // there and here, as soon as it was asked for
  Patience patience_;
};

}  // namespace stasis::criu
