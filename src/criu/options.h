// What a user may say about a dump or restore, in our words, and how that is said to CRIU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::criu {

namespace rpc {
class Opts;
}

// What becomes of established TCP connections.
enum class Tcp {
  kRefuse,  // a tree that holds one is not dumped
  kClose,   // they are dumped as closed: the program sees a reset after the restore
  kKeep,    // they are restored with their addresses and queues, by the kernel's TCP repair
};
Result<Tcp> ParseTcp(const std::string& text);

// How packets of a connection that is kept are held back while nobody is there to take them.
enum class NetworkLock {
  kAuto,  // iptables where that program is installed, else nftables
  kIptables,
  kNftables,
  kSkip,  // not at all: the other side sees a reset when it sends just then
};

struct Options {
  Tcp tcp = Tcp::kRefuse;
  bool file_locks = false;            // the tree's file locks are dumped and taken again
  bool link_remap = false;            // files that were unlinked but have another name are kept
  std::vector<std::string> external;  // CRIU's own syntax, e.g. "unix[4711]", "mnt[/a]:b"
  // The tree's session leader or terminal is outside of it. Found by PlanStdio.
  bool shell_job = false;
  bool orphan_pts_master = false;     // the terminal's other end is made anew by whoever restores
  bool external_unix_sockets = true;  // datagram sockets connected to sockets outside of the tree
  bool evasive_devices = false;
  NetworkLock network_lock = NetworkLock::kAuto;
  bool tcp_skip_in_flight = false;         // connections that nobody has accepted yet are left out
  uint64_t ghost_limit_bytes = 64u << 20;  // deleted files up to this size go into the image
  uint32_t freeze_timeout_s = 10;          // for stopping the tasks
  int log_level = 2;                       // 0 messages, 1 errors, 2 warnings, 3 info, 4 debug

  // `--criu-opt K=V`. Sets one of the options listed in options.cc; an unknown one is refused with
  // the list.
  Status Set(const std::string& key_value);
};

// What CRIU cannot do for a user who is not root: kPermissionDenied, with the option. Of root
// nothing.
Status CheckForUser(const Options& options);

// Writes `options` into the message for CRIU.
void Apply(const Options& options, rpc::Opts* opts);

}  // namespace stasis::criu
