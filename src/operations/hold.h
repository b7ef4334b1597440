// Hold for dump and hold for restore: the GPU side of a checkpoint in which another program,
// usually a container runtime, drives CRIU. CRIU's plugin (integrations/criu) sends a request
// before each step of CRIU. The plans are those of dump and restore, behind the same interfaces:
// here CriuSession and RestoreHost talk to the plugin instead of starting CRIU.
//
// The connection is a lease. If CRIU exits before the commit, the recorded state of the program is
// restored. If CRIU exits after the commit, the program has ended or continues with its GPU. In a
// restore, the program is killed if CRIU exits before it has let the program run.
#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "criu/plugin_link.h"
#include "operations/options.h"
#include "operations/result.h"
#include "operations/session.h"
#include "store/codec.h"

namespace stasis::operations {

struct HoldOptions {
  store::Compression compression = store::Compression::kNone;
  // A dump writes the GPU data to the store, and a reference to it into CRIU's image folder.
  bool by_reference = false;
  std::string subject;  // first part of the image's name in the store: the container
};

class Hold {
 public:
  // Waits for the plugin's first requests. Returns kUnavailable if CRIU exits before a program is
  // changed, which is not a failure.
  static Result<std::unique_ptr<Hold>> Open(std::shared_ptr<criu::PluginLink> link);
  static Result<std::unique_ptr<Hold>> Open(UniqueFd connection);

  // The root process of a dump.
  process::HostPid root() const { return request_.pid; }
  // "dump" or "restore".
  const std::string& verb() const { return verb_; }
  // The process id, or the image's path.
  const std::string& target() const { return target_; }

  // May be called again after a failure, as RunInSession does, until the program is held.
  Result<OperationResult> Run(Session& session, const HoldOptions& hold,
                              const OperationOptions& options);
  // Answers the request that waits for the end of the operation. If the program is already running,
  // CRIU exits only after this answer. After a restore, waits until CRIU has let the program run,
  // and kills the program if CRIU fails.
  void Answer(const Status& result);

 private:
  explicit Hold(std::shared_ptr<criu::PluginLink> link) : link_(std::move(link)) {}
  Result<OperationResult> Dump(Session& session, const HoldOptions& hold,
                               const OperationOptions& options);
  Result<OperationResult> Restore(Session& session, const OperationOptions& options);

  std::shared_ptr<criu::PluginLink> link_;
  std::string verb_;
  std::string target_;
  std::string folder_;  // for GPU data, in CRIU's image folder
  std::string images_;  // CRIU's image folder
  criu::PluginRequest request_;
  process::ProcessId restored_;
};

}  // namespace stasis::operations
