// What `stasis-criu-inside` and the one who has it started agree on; both come from one
// installation.
//
// It is started with the descriptors below and
//   stasis-criu-inside [--enter] CRIU ARG...         CRIU is a path
// and becomes CRIU, in the pid and mount namespaces in which it is, or, with --enter, in those of
// the process of kNamespaceFd, as a child of the init there. Over its socket it says one
// `Handover`, with our end of CRIU's socket pair, and at its exec the socket closes; or one with
// what went wrong.
#pragma once

#include <cstdint>

namespace stasis::criu {

inline constexpr int kHandoverFd = 3;  // SOCK_SEQPACKET; CRIU's socket afterwards
inline constexpr int kImagesFd = 90;   // folders, which stay open in CRIU: it is told these numbers
inline constexpr int kLogFolderFd = 91;
inline constexpr int kNamespaceFd = 92;  // --enter: a pidfd

enum class HandoverStep : uint32_t { kDone, kEnter, kFork, kSocket, kExec };

struct Handover {
  HandoverStep step = HandoverStep::kDone;
  int32_t error = 0;  // errno of `step`
};
static_assert(sizeof(Handover) == 8);

}  // namespace stasis::criu
