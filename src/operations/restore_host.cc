#include "operations/restore_host.h"

#include <optional>
#include <utility>

#include "criu/inside.h"
#include "criu/restore_plugin.h"
#include "criu/restored_names.h"
#include "ipc/socket.h"

namespace stasis::operations {
namespace {

class ShimHost final : public RestoreHost {
 public:
  // ConnectCriu() uses `socket`, or `inside` if CRIU runs in a new pid namespace. It adapts the
  // files in `copies`, if that is not empty, to the namespace. `plugin` is the connection to CRIU's
  // plugin, if any.
  ShimHost(jobs::RestoreShim shim, UniqueFd socket, std::optional<criu::Inside> inside,
           std::string copies, UniqueFd plugin)
      : shim_(std::move(shim)),
        socket_(std::move(socket)),
        inside_(std::move(inside)),
        copies_(std::move(copies)),
        plugin_(std::move(plugin)) {}

  const process::ProcessId& shim() const override { return shim_.shim(); }
  Result<std::unique_ptr<criu::CriuSession>> ConnectCriu(const Deadline& deadline) override {
    STASIS_ASSIGN(criu::Session session, Connect(deadline));
    if (plugin_) session.UsePlugin(std::move(plugin_));
    return std::make_unique<criu::Session>(std::move(session));
  }
  Status SetRoot(const process::ProcessId& root, const Deadline& deadline) override {
    return shim_.SetRoot(root, deadline);
  }
  bool root_ended() const override { return shim_.root_ended().has_value(); }
  std::optional<int> RootStatus(const Deadline& deadline) override {
    return shim_.AwaitRootEnd(deadline);
  }
  Status Commit(const Deadline& deadline) override { return shim_.Commit(deadline); }
  Status Abort(const Deadline& deadline) override { return shim_.Abort(deadline); }

 private:
  Result<criu::Session> Connect(const Deadline& deadline) {
    if (!inside_) return criu::Session::OverSocket(std::move(socket_), shim_.criu());
    // The local object closes its socket and folders when this function returns, even on error.
    std::optional<criu::Inside> inside = std::exchange(inside_, std::nullopt);
    STASIS_ASSIGN(criu::Session session, inside->Accept(deadline));
    if (!copies_.empty()) {
      STASIS_ASSIGN(const uint64_t number, process::ReadNamespace(shim().pid, "pid"));
      STASIS_TRY(criu::SetPidNamespace(copies_, number));
    }
    return session;
  }

  jobs::RestoreShim shim_;
  UniqueFd socket_;
  std::optional<criu::Inside> inside_;
  const std::string copies_;
  UniqueFd plugin_;
};

class ShimHosts final : public RestoreHosts {
 public:
  Result<std::unique_ptr<RestoreHost>> Start(HostSpec spec, const Deadline& deadline) override {
    std::optional<criu::Inside> inside;
    ipc::SocketPair pair, plugin;
    criu::SwrkCommand command;
    if (spec.stops_at_end) spec.plugins = criu::RestorePlugin::Folder();
    const bool has_plugin = spec.stops_at_end && !spec.plugins.empty();
    if (spec.shim.new_pidns) {
      STASIS_ASSIGN(
          inside, criu::Inside::Make(spec.criu_path, spec.plugins, spec.images_dir, spec.log_path));
      spec.shim.criu_fds.merge(inside->fds());
      command = inside->command();
    } else {
      STASIS_ASSIGN(pair, ipc::MakeSocketPair());
      spec.shim.criu_fds[criu::SwrkCommand::kSocketFd] = pair.theirs.get();
      command = criu::MakeSwrkCommand(spec.criu_path, spec.plugins);
    }
    if (has_plugin) {
      STASIS_ASSIGN(plugin, ipc::MakeSocketPair());
      spec.shim.criu_fds[criu::RestorePlugin::kSocketFd] = plugin.theirs.get();
      criu::RestorePlugin::AddTo(command);
    }
    spec.shim.criu_argv = std::move(command.argv);
    spec.shim.criu_env = std::move(command.env);
    STASIS_ASSIGN(jobs::RestoreShim shim, jobs::RestoreShim::Start(spec.shim, deadline));
    return std::make_unique<ShimHost>(
        std::move(shim), std::move(pair.ours), std::move(inside),
        spec.images_are_copies ? std::move(spec.images_dir) : std::string(),
        std::move(plugin.ours));
  }
};

}  // namespace

std::shared_ptr<RestoreHosts> MakeRestoreHosts() { return std::make_shared<ShimHosts>(); }

}  // namespace stasis::operations
