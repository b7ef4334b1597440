// The API as the command line uses it. A call is executed by the daemon if one is running, and by
// this process otherwise. Methods (methods.h) and answers are the same.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/call.h"
#include "base/result.h"
#include "config/settings.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

struct ClientOptions {
  bool without_daemon = false;
  // Called between two phases of an operation without a daemon. If it returns true, the operation
  // is rolled back.
  std::function<bool()> cancelled;
  // Becomes readable to cancel an operation of the daemon. -1 if that never happens.
  int cancel_fd = -1;
};

using OnEvent = std::function<void(const v1::OperationEvent&)>;

// Makes the path of an image absolute, as requests require. The name of an image or a job is not
// changed, unless the working directory contains an image of that name.
std::string AbsoluteImage(const std::string& image);

class Client {
 public:
  // Returns an error if a daemon's socket exists but does not answer (kUnavailable) or belongs to
  // another user (kPermissionDenied). In that case this process does not do the work itself.
  static Result<Client> Open(const config::Settings& settings, ClientOptions options);
  // Connects to the daemon only. Returns kNotFound if no daemon is running.
  static Result<Client> OpenDaemon(const config::Settings& settings);
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  bool has_daemon() const { return link_ != nullptr; }

  Result<v1::OperationResult> Suspend(const v1::SuspendRequest& request, const OnEvent& on_event);
  Result<v1::OperationResult> Resume(const v1::ResumeRequest& request, const OnEvent& on_event);
  Result<v1::OperationResult> Dump(const v1::DumpRequest& request, const OnEvent& on_event);
  // The path of an image may be relative to this process's working directory.
  Result<v1::OperationResult> Restore(const v1::RestoreRequest& request, const OnEvent& on_event);
  Result<v1::RecoverResponse> Recover();
  Result<v1::ListContainersResponse> ListContainers(const v1::ListContainersRequest& request);

  Result<v1::ManageJobResponse> ManageJob(const v1::ManageJobRequest& request);
  Result<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  Result<v1::Job> GetJob(const std::string& job);
  Result<v1::Job> WaitJob(const std::string& job);
  Result<v1::KillJobResponse> KillJob(const v1::KillJobRequest& request);
  Status DeleteJob(const std::string& job);
  Result<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job);

  // These need has_daemon().
  Result<v1::DaemonStatus> GetStatus();
  Result<v1::ListOperationsResponse> ListOperations();
  Result<v1::ListSharesResponse> ListShares(uint64_t after_version);
  Status PinShare(const std::string& job, bool pinned);
  Status NoteShare(bool starting);
  // Returns true when the daemon's process has exited, or false if the process is in another pid
  // namespace, where its exit cannot be observed. Returns kDeadlineExceeded if operations are still
  // in progress, or if the drained process does not exit.
  Result<bool> Drain(double timeout_s);

 private:
  struct Link;
  friend class DaemonHold;
  Client() = default;
  static Result<std::unique_ptr<Link>> Connect(const config::Settings& settings);

  template <class Request, class Response, class Rpc>
  Result<Response> Unary(const Request& request, Rpc rpc,
                         Result<Response> (*local)(Call&, const Request&), bool changes = false);
  template <class Request, class Rpc>
  Result<v1::OperationResult> Stream(const Request& request, Rpc rpc,
                                     Result<v1::OperationEvent> (*local)(Call&, const Request&),
                                     const OnEvent& on_event, const char* held_as = nullptr);
  // In this process. If `held_as` is a method, the daemon stays away from the target meanwhile.
  template <class Request>
  Result<v1::OperationResult> Locally(const Request& request,
                                      Result<v1::OperationEvent> (*local)(Call&, const Request&),
                                      const OnEvent& on_event, const char* held_as);

  std::unique_ptr<Link> link_;  // null without a daemon
  Call call_;
  ClientOptions options_;
};

}  // namespace stasis::api
