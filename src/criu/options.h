// Defines the options of a dump or restore, and translates them to CRIU's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::criu {

namespace rpc {
class Opts;
}

// Treatment of established TCP connections.
enum class Tcp {
  kRefuse,  // do not dump a tree that has established connections
  kClose,   // dump them as closed; the program sees a reset after the restore
  kKeep,    // restore them with addresses and queues, by the kernel's TCP repair
};
Result<Tcp> ParseTcp(const std::string& text);

// How packets of a kept connection are blocked while the program is not running.
enum class NetworkLock {
  kAuto,  // for root iptables if installed, otherwise nftables
  kIptables,
  kNftables,
  kSkip,  // not blocked; a packet that arrives while the program is stopped resets the connection
};

struct Options {
  Tcp tcp = Tcp::kRefuse;
  bool file_locks = false;  // dump the tree's file locks, and take them again at the restore
  bool link_remap = false;  // keep files that were unlinked but have another name
  std::vector<std::string> external;  // in CRIU's syntax, for example "unix[4711]", "mnt[/a]:b"
  // The session leader or terminal is outside of the tree. Set by PlanStdio.
  bool shell_job = false;
  bool orphan_pts_master = false;  // the restoring process recreates the terminal's other end
  // Allow datagram sockets that are connected to sockets outside of the tree.
  bool external_unix_sockets = true;
  bool evasive_devices = false;
  NetworkLock network_lock = NetworkLock::kAuto;
  bool tcp_skip_in_flight = false;         // omit connections that are not yet accepted
  uint64_t ghost_limit_bytes = 64u << 20;  // store deleted files up to this size in the image
  uint32_t freeze_timeout_s = 10;          // time limit for stopping the tasks
  // Folder of the plugins that CRIU loads; empty: none. Not set by users.
  std::string plugins;
  int log_level = 2;  // 0 messages, 1 errors, 2 warnings, 3 info, 4 debug

  // Sets an option from `--criu-opt K=V`. Accepts only the options listed in options.cc. The error
  // for an unknown option lists them.
  Status Set(const std::string& key_value);
};

// Returns kPermissionDenied if an option requires more privileges than this user has, and names the
// option. Always succeeds for root.
Status CheckForUser(const Options& options);

// Writes `options` to CRIU's request.
void Apply(const Options& options, rpc::Opts* opts);

}  // namespace stasis::criu
