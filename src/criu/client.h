// A session with one `criu swrk`, a child process that serves one request over a socket pair and
// then exits.
//
// Not thread-safe. The process that calls Dump or Restore must also make the socket pair, because
// CRIU finds the log folder through /proc/PID/fd of the process that made it (SO_PEERCRED).
//
// If this process is killed, CRIU continues. During a dump it then gets no answer to `post-dump`
// and resumes the tasks, so it must still be running. Before that, at `pre-dump`, it exits.
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
#include "criu/options.h"
#include "process/proc.h"

namespace stasis::criu {

namespace rpc {
class Opts;
class Request;
class Response;
}  // namespace rpc
class RestorePlugin;

struct Version {
  int major = 0;
  int minor = 0;
  int sublevel = 0;
  auto operator<=>(const Version&) const = default;
};
std::string ToString(const Version& version);

// The points at which CRIU asks for permission to continue.
enum class Moment {
  kPreDump,
  kQueryExternalFiles,
  // The images are complete, and the tasks are stopped. If the handler returns an error, CRIU lets
  // the tasks run; otherwise it kills them, unless the request has `leave_running`.
  kPostDump,
  kPreRestore,
  // The restored tree exists and is stopped, and the pid of its root is known. If the handler
  // returns an error, CRIU kills the tree.
  kPostRestore,
  // After kPostRestore, if it had `stops_again`. CRIU traces all threads of the restored tree,
  // which are stopped at the end of their restore. If the handler returns an error, the tree is
  // killed.
  kStopped,
  kPreResume,
  kPostResume,
  kOther,
};

struct Notification {
  Moment moment = Moment::kOther;
  process::HostPid pid;  // the root of the restored tree, or 0 if it is not known
  // kPostRestore: kStopped follows before the program runs.
  bool stops_again = false;
  // kStopped: lets these threads of the tree run until the handler returns.
  std::function<Status(const std::vector<pid_t>&)> let_run = {};
};

// Handles a notification. An error rejects it and becomes the error of the request.
using NotifyHandler = std::function<Status(Notification&)>;

// The command line and environment of `criu swrk`, for this process or another one (the shim).
struct SwrkCommand {
  static constexpr int kSocketFd = 3;  // descriptor number of the socket in CRIU
  std::vector<std::string> argv;
  std::vector<std::string> env;
};
// Uses a scrubbed environment, disables configuration files, and lets CRIU load only the plugins in
// the folder `plugins`, or none if it is empty.
SwrkCommand MakeSwrkCommand(const std::string& criu_path, const std::string& plugins = {});

struct DumpRequest {
  process::HostPid pid;  // the root of the tree
  // The folder must exist. After the dump, call DetachTerminals (terminals.h) for it.
  std::string images_dir;
  std::string log_path;  // outside of images_dir, in an existing folder
  bool leave_running = false;
  Options options;
};

// A descriptor that replaces a descriptor which was dumped as external.
struct InheritFd {
  std::string key;  // CRIU's name of the replaced descriptor, for example "pipe:[4711]"
  int fd = -1;      // number in the CRIU process
};

struct RestoreRequest {
  std::string images_dir;
  std::string log_path;
  Options options;
  std::vector<InheritFd> inherit;
};

// A session serves only one request and then ends. The deadline applies to CRIU, not to the
// handler. At the deadline CRIU is stopped as described in end.h, and the error is
// kDeadlineExceeded. Other errors come from the handler or from CRIU's log. An error with
// `not_undone` means that the program has died, or that CRIU hangs in the kernel.
class CriuSession {
 public:
  virtual ~CriuSession() = default;
  // Optional, before Dump with the same request. Returns when CRIU is about to stop the program,
  // which therefore does not wait while CRIU starts.
  virtual Status PrepareDump(const DumpRequest& request, const Deadline& deadline);
  // Ends a CRIU whose dump will not be continued, before Dump was called, and waits for its exit
  // for up to 10 s. CRIU has not touched the program.
  virtual void CancelPrepared() {}
  virtual Status Dump(const DumpRequest& request, const NotifyHandler& handler,
                      const Deadline& deadline) = 0;
  // Returns the pid of the restored tree's root.
  virtual Result<process::HostPid> Restore(const RestoreRequest& request,
                                           const NotifyHandler& handler,
                                           const Deadline& deadline) = 0;
  // After a successful Dump: returns true if another program controlled CRIU and left the dumped
  // program running.
  virtual bool left_running() const { return false; }
  // If left_running() is true: lets the dumped program run. Until this call, the other program
  // keeps it stopped.
  virtual void LetGo() {}
};

class Session final : public CriuSession {
 public:
  // Starts CRIU as a child in its own session. CRIU keeps the descriptors in `extra_fds` open until
  // it exits: locks, and descriptors that the restored program inherits. The key of each is its
  // number in CRIU, at least 10. `network_right`: passes CAP_NET_ADMIN on, to keep TCP connections.
  static Result<Session> Spawn(const std::string& criu_path,
                               const std::map<int, int>& extra_fds = {},
                               const std::string& plugins = {}, bool network_right = false);
  // Uses a CRIU that another process has started. `criu` may be 0 if the pid is unknown.
  static Session OverSocket(UniqueFd socket, process::HostPid criu = {});
  // For a CRIU in another pid namespace, which created the socket pair itself (see inside.h). All
  // pids in requests, notifications and answers are still those of the caller's namespace.
  static Result<Session> Inside(UniqueFd socket);
  ~Session() override;
  Session(Session&&) noexcept;
  // For a CRIU that has been started with the plugin for restores (restore_plugin.h). `socket` is
  // the other end of the plugin's connection. Call it before Restore.
  void UsePlugin(UniqueFd socket);

  Status PrepareDump(const DumpRequest& request, const Deadline& deadline) override;
  void CancelPrepared() override;
  Status Dump(const DumpRequest& request, const NotifyHandler& handler,
              const Deadline& deadline) override;
  Result<process::HostPid> Restore(const RestoreRequest& request, const NotifyHandler& handler,
                                   const Deadline& deadline) override;
  // GetVersion and Check end the session too.
  Result<Version> GetVersion(const Deadline& deadline);
  // Runs CRIU's own check of the machine.
  Status Check(const std::string& log_path, const Deadline& deadline);

  process::HostPid criu_pid() const { return criu_pid_; }

 private:
  Session();
  // Opens the folders that the request names, and keeps them open until the session ends.
  Status SetPlaces(const std::string& images_dir, const std::string& log_path, rpc::Opts* opts);
  Status SendDump(const DumpRequest& request);
  // `accepted`: post-dump was accepted.
  Status FinishDump(const DumpRequest& request, Result<rpc::Response> response, bool accepted);
  // Convert between pids of this namespace and pids of CRIU's namespace; 0 stays 0.
  Result<pid_t> ToCriu(process::HostPid pid) const;
  Result<process::HostPid> FromCriu(pid_t pid);
  Status Send(const rpc::Request& request);
  Result<rpc::Response> Converse(const rpc::Request& request, const NotifyHandler& handler,
                                 const Deadline& deadline);
  // Handles notifications until the answer to the request arrives.
  Result<rpc::Response> AwaitAnswer(const NotifyHandler& handler, const Deadline& deadline);
  Result<rpc::Response> Receive(const Deadline& deadline);
  // Waits for CRIU. Returns true if its plugin has sent a request and CRIU itself nothing.
  bool PluginAsks(const Deadline& deadline) const;
  // Ends the session. If CRIU died without an answer, takes the error from its log.
  Result<rpc::Response> Conclude(Result<rpc::Response> response, const std::string& log_path,
                                 const char* what);
  // Waits for CRIU to exit. If CRIU is a child, returns a description of its exit status.
  std::string Reap();

  UniqueFd socket_;
  std::optional<Subprocess> child_;
  process::HostPid criu_pid_;
  UniqueFd criu_pidfd_;
  bool inside_ = false;
  uint64_t pid_namespace_ = 0;  // CRIU's pid namespace, with `inside_`
  // The pid of the root in CRIU's namespace and in this one, cached.
  std::pair<pid_t, process::HostPid> root_{};
  UniqueFd images_;
  UniqueFd log_folder_;
  process::ProcessId dumped_;  // the root of a dump
  // After PrepareDump: not answered yet. Shared, because the type is incomplete here.
  std::shared_ptr<rpc::Response> notification_;
  std::unique_ptr<RestorePlugin> plugin_;
};

}  // namespace stasis::criu
