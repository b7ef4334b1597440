// Stasis's own plugin in the CRIU of a restore (integrations/criu/restore_plugin.c). With it, CRIU
// asks at the end of the restore, before the program runs, and lets chosen threads run meanwhile
// (Moment::kStopped). Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "criu/client.h"
#include "criu/plugin_link.h"

namespace stasis::criu {

class RestorePlugin {
 public:
  // The number in CRIU of the plugin's end of the socket pair.
  static constexpr int kSocketFd = 93;
  // Returns the folder of the plugin, or an empty string if it is not installed.
  static std::string Folder();
  // Tells the plugin of this CRIU the number of its descriptor.
  static void AddTo(SwrkCommand& command);

  explicit RestorePlugin(std::unique_ptr<PluginLink> link) : link_(std::move(link)) {}

  // Returns true if CRIU has loaded the plugin, so that kStopped follows.
  bool is_loaded() const { return is_loaded_; }
  // Returns true if kStopped has been handled.
  bool has_stopped() const { return has_stopped_; }
  // A descriptor that is readable when Serve() must be called. -1 after the plugin's end.
  int fd() const { return link_ ? link_->request_fd() : -1; }

  // Converts pids and thread ids of this namespace to those of CRIU's namespace and back.
  struct Pids {
    std::function<Result<pid_t>(process::HostPid)> to_criu;
    std::function<Result<process::HostPid>(pid_t)> from_criu;
  };
  // Receives and answers one request. Returns the error with which `handler` has rejected it; the
  // plugin then kills the program.
  Status Serve(const Pids& pids, const NotifyHandler& handler);

 private:
  Status OnStopped(pid_t root, const Pids& pids, const NotifyHandler& handler);

  std::unique_ptr<PluginLink> link_;
  bool is_loaded_ = false;
  bool has_stopped_ = false;
};

}  // namespace stasis::criu
