// The processes that a restore starts first: a shim, and as its child a CRIU that waits for its
// request. The restored program is a descendant of the shim, which kills it if the restore fails or
// this process dies before Commit().
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/client.h"
#include "jobs/shim_client.h"
#include "store/manifest.h"

namespace stasis::operations {

// See jobs::RestoreShim. Not thread-safe.
class RestoreHost {
 public:
  virtual ~RestoreHost() = default;
  virtual const process::ProcessId& shim() const = 0;
  // Connects to CRIU. Call it once.
  virtual Result<std::unique_ptr<criu::CriuSession>> ConnectCriu(const Deadline& deadline) = 0;
  virtual Status SetRoot(const process::ProcessId& root, const Deadline& deadline) = 0;
  virtual bool root_ended() const = 0;
  // Returns the wait status of the root, which must have ended. Returns nothing if it cannot be
  // known.
  virtual std::optional<int> RootStatus(const Deadline& deadline) = 0;
  virtual Status Commit(const Deadline& deadline) = 0;
  virtual Status Abort(const Deadline& deadline) = 0;
};

struct HostSpec {
  jobs::RestoreSpec shim;  // without CRIU's command and socket
  std::string criu_path;
  std::string plugins;     // folder of CRIU's plugins; empty: none
  std::string images_dir;  // the folder of CRIU's files
  // The files are copies. With a new pid namespace, the host adapts them to it.
  bool images_are_copies = false;
  std::string log_path;
  // Load the plugin of criu/restore_plugin.h, if it is installed. `plugins` must be empty.
  bool stops_at_end = false;
};

// Starts hosts.
class RestoreHosts {
 public:
  virtual ~RestoreHosts() = default;
  virtual Result<std::unique_ptr<RestoreHost>> Start(HostSpec spec, const Deadline& deadline) = 0;
};
std::shared_ptr<RestoreHosts> MakeRestoreHosts();

}  // namespace stasis::operations
