// The protocol between the shim and its starter over a SOCK_SEQPACKET pair. Each packet is one
// `Message`. Both come from one installation, so there is no negotiation: another version is an
// error.
//
//   run      shim -> starter   kShim, kRoot        the program runs; then the shim closes its end
//                              kShim?, kFailed     nothing runs, nothing is left
//
//   restore  shim -> starter   kShim, kCriu        CRIU runs and waits for its request
//            starter -> shim   kRoot               the root of the restored tree; answered by kAck
//            shim -> starter   kCriuEnded,         on these events, until the commit
//                              kRootEnded
//            starter -> shim   kCommit             kAck: the tree belongs to the job from here on,
//                                                  whatever happens to the starter. kFailed: it
//                                                  does not
//            starter -> shim   kAbort              kAck when no process of the tree is left
//            end-of-file before kCommit            the starter died: same as kAbort
//
// Numbers are in native byte order. Raise kProtocolVersion with every change here.
#pragma once

#include <cstdint>

namespace stasis::shim {

inline constexpr uint32_t kProtocolVersion = 2;

enum class Kind : uint32_t {
  kShim = 1,       // id of the shim
  kRoot = 2,       // id of the root of the job's tree
  kCriu = 3,       // id of CRIU
  kCriuEnded = 4,  // value: its wait status
  kRootEnded = 5,  // value: its wait status
  kAck = 6,        // value: the acknowledged Kind
  kFailed = 7,     // value: errno; step: the failed step
  kCommit = 8,
  kAbort = 9,
};

enum class Step : uint32_t {
  kNone = 0,
  kArguments = 1,
  kJobFolder = 2,
  kLog = 3,
  kStart = 4,   // pipes, fork
  kRecord = 5,  // writing to the job's directory
  kExec = 6,    // errno of execve
  kNoRoot = 7,  // kCommit before kRoot
  kNamespace = 8,
  kTerminal = 9,
};

struct Message {
  uint32_t version = kProtocolVersion;
  Kind kind{};
  Step step = Step::kNone;
  int32_t value = 0;
  int32_t pid = 0;          // as the receiver sees it, except kCriu in another pid namespace
  int32_t inner_pid = 0;    // kRoot: pid in the shim's own pid namespace
  uint64_t start_time = 0;  // as in process::ProcessId
};
static_assert(sizeof(Message) == 32);

// Descriptor numbers in the CRIU that the shim starts; the starter names them in CRIU's request.
// CRIU closes a number after handing it on, so there are several of each kind.
inline constexpr int kCriuOutputFds[] = {10, 11, 12, 13, 14};  // the job's log, for appending
inline constexpr int kCriuNullFds[] = {15, 16, 17, 18, 19};    // /dev/null, for reading and writing
inline constexpr int kCriuTerminalFds[] = {100, 101, 102, 103, 104};  // the job's terminal, if any

// `stasis-shim restore --new-pidns`: the shim is the init process of a new pid namespace, with its
// own mounts and /proc. With --proc it is a process of another pid namespace, where
// ipc/pidns_init.h has started it. In both cases it reports its own pid as the starter sees it, and
// pids of CRIU as the shim sees them.

// The shim's descriptor of its end of the pair.
inline constexpr int kControlFd = 3;
// Descriptors for the shim's options, as numbered by `jobs/shim_client.cc`.
inline constexpr int kClientFd = 4;
inline constexpr int kInputFd = 5;
inline constexpr int kProcFd = 6;

// Files in a job's directory, written by the shim unless noted.
//   process.json  the processes and the log of the job; replaced by one rename when a restored tree
//                 is committed
//   exit.json     how the root in process.json ended. Its space is allocated at the start, as
//                 kExitReserve, so that a full disk does not lose it
//   dumped        (written by a dump) "VERSION PID START_TIME\nIMAGE\n": the tree with this
//                 root is in a complete image and is being killed
//   shim.lock     held by the shim until exit.json exists
//   terminal      a socket, if the job has a terminal: see terminal_protocol.h
inline constexpr char kProcessFile[] = "process.json";
// Path of the job's log relative to the job's directory, unless --log is given.
inline constexpr char kOwnLog[] = "/log";
inline constexpr char kExitFile[] = "exit.json";
inline constexpr char kExitReserve[] = "exit.json.reserved";
inline constexpr char kDumpedFile[] = "dumped";
inline constexpr char kShimLock[] = "shim.lock";
inline constexpr int kRecordVersion = 1;
inline constexpr int kDumpedExitCode = 75;

}  // namespace stasis::shim
