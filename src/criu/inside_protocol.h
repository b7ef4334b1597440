// The interface between `stasis-criu-inside` and the process that starts it, directly or by a shim.
// Both programs come from one installation.
//
//   stasis-criu-inside [--reopen | --enter] CRIU ARG...         CRIU is a path
//
// The program is started with the descriptors below. It becomes CRIU in its own pid and mount
// namespaces. With --reopen (for a restore) it first opens the files that the program will inherit
// by their names there. With --enter it becomes CRIU in the namespaces of the process of
// kNamespaceFd, as a child of the init process there. It sends one `Handover` with an end of CRIU's
// socket pair, and exec then closes the hand-over socket. After a failure it sends a `Handover`
// with the error.
#pragma once

#include <cstdint>

namespace stasis::criu {

inline constexpr int kHandoverFd = 3;  // SOCK_SEQPACKET; later CRIU's socket
inline constexpr int kImagesFd = 90;   // directories that stay open in CRIU, under these numbers
inline constexpr int kLogFolderFd = 91;
inline constexpr int kNamespaceFd = 92;  // with --enter: a pidfd

enum class HandoverStep : uint32_t { kDone, kEnter, kFork, kSocket, kExec };

struct Handover {
  HandoverStep step = HandoverStep::kDone;
  int32_t error = 0;  // errno of `step`
};
static_assert(sizeof(Handover) == 8);

}  // namespace stasis::criu
