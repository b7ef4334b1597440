// What the shim and the one who starts it say to each other, over a SOCK_SEQPACKET pair, one
// `Message` a packet. Both come from one installation, so there is no negotiation: another version
// is an error.
//
//   run      shim -> starter   kShim, kRoot             the program runs; then the shim closes its
//   end
//                              kShim?, kFailed          nothing runs, nothing is left
//
//   restore  shim -> starter   kShim, kCriu             CRIU runs and waits for its request
//            starter -> shim   kRoot                    the root of the restored tree; answered by
//            kAck shim -> starter   kCriuEnded, kRootEnded   when it happens, until the commit
//            starter -> shim   kCommit                  kAck: the tree is the job's from here on,
//            whatever
//                                                       becomes of the starter. kFailed: still not
//            starter -> shim   kAbort                   kAck when no process of the tree is left
//            end of file before kCommit                 the starter died: the same as kAbort
//
// Numbers are of the machine's own byte order. Raise kProtocolVersion with any change here.
#pragma once

#include <cstdint>

namespace stasis::shim {

inline constexpr uint32_t kProtocolVersion = 2;

enum class Kind : uint32_t {
  kShim = 1,       // id: the shim
  kRoot = 2,       // id: the root of the job's tree
  kCriu = 3,       // id: CRIU
  kCriuEnded = 4,  // value: its wait status
  kRootEnded = 5,  // value: its wait status
  kAck = 6,        // value: the Kind that is acknowledged
  kFailed = 7,     // value: errno; step: what failed
  kCommit = 8,
  kAbort = 9,
};

enum class Step : uint32_t {
  kNone = 0,
  kArguments = 1,
  kJobFolder = 2,
  kLog = 3,
  kStart = 4,   // pipes, fork
  kRecord = 5,  // what is written to the job's folder
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
  int32_t pid = 0;          // as its reader sees it, but for kCriu of a new pid namespace
  int32_t inner_pid = 0;    // kRoot: in its own pid namespace, which is the shim's
  uint64_t start_time = 0;  // as in process::ProcessId
};
static_assert(sizeof(Message) == 32);

// Descriptors of the CRIU that the shim starts, named by whoever speaks CRIU's RPC. CRIU closes a
// number that it has handed on, so there are several of each.
inline constexpr int kCriuOutputFds[] = {10, 11, 12, 13, 14};  // the job's log, for appending
inline constexpr int kCriuNullFds[] = {15, 16, 17, 18, 19};    // /dev/null, for reading and writing
inline constexpr int kCriuTerminalFds[] = {100, 101, 102, 103, 104};  // the job's, when it has one
inline constexpr int kCriuOutputFd = kCriuOutputFds[0];
inline constexpr int kCriuNullFd = kCriuNullFds[0];
// What the starter gives to CRIU itself lies outside of these, and below the terminal.
inline constexpr int kCriuFirstFreeFd = 20;

// `stasis-shim restore --new-pidns`: the shim is the init of a new pid namespace, with mounts and a
// /proc of its own. It says process ids of itself as its starter sees them, of CRIU as it sees
// them.

// Descriptor of the shim for its end of the pair.
inline constexpr int kControlFd = 3;
// And for what its arguments name, as `jobs/shim_client.cc` numbers it.
inline constexpr int kClientFd = 4;
inline constexpr int kInputFd = 5;

// Files in a job's folder. Who writes them: the shim, except where another is named.
//   process.json  which processes the job is, and which file is their log; replaced by one rename
//   when a restored tree is taken exit.json     how the root of process.json ended. Space for it is
//   taken at the start, under
//                 kExitReserve, so that a full disk does not cost it
//   dumped        (the coordinator) "VERSION PID START_TIME\nIMAGE\n": the tree with this root is
//   in
//                 an image that is complete, and is being killed for it
//   shim.lock     held by the shim until exit.json is there
//   terminal      a socket, of a job that has a terminal: see terminal_protocol.h
inline constexpr char kProcessFile[] = "process.json";
// The job's log, where --log names none, below its folder.
inline constexpr char kOwnLog[] = "/log";
inline constexpr char kExitFile[] = "exit.json";
inline constexpr char kExitReserve[] = "exit.json.reserved";
inline constexpr char kDumpedFile[] = "dumped";
inline constexpr char kShimLock[] = "shim.lock";
inline constexpr int kRecordVersion = 1;
inline constexpr int kDumpedExitCode = 75;

}  // namespace stasis::shim
