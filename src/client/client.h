// What the command line asks for, done by the daemon where one runs and by this process where none
// does: the same methods (service/methods.h), the same answers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "config/settings.h"
#include "service/call.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::client {

struct Options {
  bool without_daemon = false;
  // Asked by an operation without a daemon, between two phases.
  std::function<bool()> cancelled;
  // Readable when an operation of the daemon shall be cancelled; -1: never.
  int cancel_fd = -1;
};

using OnEvent = std::function<void(const v1::OperationEvent&)>;

class Client {
 public:
  // A daemon's socket that is there and does not answer, or that somebody else has made, is an
  // error: kUnavailable, kPermissionDenied. Never is the work done here instead.
  static Result<Client> Open(const config::Settings& settings, Options options);
  // To the daemon and nowhere else; kNotFound: none runs.
  static Result<Client> OpenDaemon(const config::Settings& settings);
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  bool has_daemon() const { return link_ != nullptr; }

  Result<v1::OperationResult> Suspend(const v1::SuspendRequest& request, const OnEvent& on_event);
  Result<v1::OperationResult> Resume(const v1::ResumeRequest& request, const OnEvent& on_event);
  Result<v1::OperationResult> Dump(const v1::DumpRequest& request, const OnEvent& on_event);
  Result<v1::OperationResult> Restore(const v1::RestoreRequest& request, const OnEvent& on_event);
  Result<v1::RecoverResponse> Recover();

  // By this process itself, also where there is a daemon: a job is started where its user is, in
  // that session's limits, control group and directory.
  Result<v1::RunResponse> Run(const v1::RunRequest& request);
  Result<v1::ManageJobResponse> ManageJob(const v1::ManageJobRequest& request);
  Result<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  Result<v1::Job> GetJob(const std::string& job);
  Result<v1::Job> WaitJob(const std::string& job);
  Result<v1::KillJobResponse> KillJob(const v1::KillJobRequest& request);
  Status DeleteJob(const std::string& job);
  Result<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job);

  // Of the daemon: only after has_daemon().
  Result<v1::DaemonStatus> GetStatus();
  Result<v1::ListOperationsResponse> ListOperations();
  // True: its process has ended, and has let go of its socket. False: that cannot be seen from here
  // (it is in another pid namespace), and it ends in a moment. kDeadlineExceeded: also when it is
  // drained, and stays.
  Result<bool> Drain(double timeout_s);

 private:
  struct Link;
  Client() = default;
  static Result<std::unique_ptr<Link>> Connect(const config::Settings& settings);

  template <class Request, class Response, class Rpc>
  Result<Response> Unary(const Request& request, Rpc rpc,
                         Result<Response> (*local)(service::Call&, const Request&),
                         bool changes = false);
  template <class Request, class Rpc>
  Result<v1::OperationResult> Stream(const Request& request, Rpc rpc,
                                     Result<v1::OperationEvent> (*local)(service::Call&,
                                                                         const Request&),
                                     const OnEvent& on_event);

  std::unique_ptr<Link> link_;  // null: no daemon
  service::Call call_;
  Options options_;
};

}  // namespace stasis::client
