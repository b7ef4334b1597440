// CRIU's block of the packets of kept TCP connections, by nftables.
//
// CRIU makes it for the dump and removes it at the restore, or when the dumped program continues.
// If the program is restored on another machine, or never, it would stay for ever, and drop packets
// of anybody's later connections with the same addresses and ports. Therefore Stasis removes it
// after a dump that has ended the program, and makes it again before a restore. A connection to
// another program keeps it: without it, the kernel would tell the other end that the connection has
// ended.
//
// The functions work on the network namespace of this process, need CAP_NET_ADMIN, and may be
// called by any thread. They use libnftables, which CRIU needs too.
#pragma once

#include <string>

#include "base/result.h"
#include "criu/kept_connections.h"

namespace stasis::criu {

// Returns the commands of nft that make the same table as CRIU 4.2.1.
std::string LockCommands(const KeptConnections& kept);

// Call it after a dump that has ended the program, with what ReadKeptConnections returned for its
// images. Removes the lock if no connection leads to another program. If the lock stays, returns
// sentences that say what stays, why, until when and how to remove it; otherwise an empty text.
std::string ReleaseAfterDump(const Result<KeptConnections>& kept);

// The lock during a restore.
class RestoreLock {
 public:
  // Makes the lock that CRIU's restore removes, unless CRIU's own lock is still there or the dump
  // had none of nftables. If it cannot be made, this is an error if a connection has data that CRIU
  // could not restore, otherwise note() says so.
  static Result<RestoreLock> Make(const std::string& images_dir);
  RestoreLock() = default;
  RestoreLock(RestoreLock&&) = default;

  // Call it when CRIU has ended, and after a failed restore its processes too. Removes what CRIU
  // has left, except a lock that was there before and is needed for another restore.
  Status End();
  const std::string& note() const { return note_; }  // a sentence, or empty

 private:
  std::string table_;  // what End removes; empty for nothing
  std::string note_;
};

}  // namespace stasis::criu
