// The protocol between a client and the agent inside a program: the header by which a client finds
// the agent, and the messages on a SOCK_SEQPACKET socket. All messages are plain structs, which
// never leave the machine and are never written to disk.
//
// Every message is one packet: a Header, then the struct that its type names. `length` is the
// length of the whole packet and is checked before anything else is read. A client sends a request
// and reads its answer before it sends the next one. A packet has at most kMaxBatch file
// descriptors.
//
//   client                        agent
//   kHello                        kHelloReply
//   kStatus                       kHelloReply
//   kClose   CloseRequest         kReply        gate closed, contexts drained
//   kExportRunning                kRanges …     in kOpen: as kExport, but the program runs and may
//                                               allocate and free meanwhile, so the list may lack
//                                               new memory. `total` exceeds first + count in all
//                                               packets but the last. An allocation that fails
//                                               for lack of memory waits for the next request,
//                                               before which the client closes the descriptors.
//                                               Only for agents with kRunningTold
//   kExport                       kRanges …     at least one; each with `count` descriptors
//   kRelease ReleaseRequest       kReply        only the receiver's descriptors keep the memory
//                                               alive; with `hold` the agent keeps descriptors
//                                               too; stack limits are lowered
//                                               (CloseRequest::flags)
//   kCommit                       kReply        the agent has closed the descriptors that it held
//   kMap     Ranges, descriptors  kReply        one for each batch, in the order of the export
//   kOwn                          kReply        imported memory is copied into new memory of the
//                                               program, which the driver can save without the
//                                               agent; after an error (kDriver) the remaining
//                                               memory is still imported. Only for agents with
//                                               kMemoryTold
//   kRest    RestRequest          kReply        after kCloseInSteps: `calls` more calls of the
//                                               program pass the gate; then the same as kClose
//   kOpen                         kReply        stack limits are restored and the program
//                                               continues; an error (kDriver) leaves the gate
//                                               closed, and the client may ask again
//   kDescribe                     kDescription … the list of the export without descriptors; in
//                                               every state except kOpen
//   kAskVisible                   kVisible      the GPUs that the program sees. Calls the driver in
//                                               kOpen; tells later what it found then. Only for
//                                               agents with kVisibleTold
//   kRejoin                       kReply        memory of other processes (CUDA IPC) is mapped
//                                               again; their agents must have mapped it before.
//                                               kOpen maps memory that is still missing
//
// Beside this client, one watcher may be connected: a connection whose first packet is kWatch, sent
// before the agent gets the socket. Only for agents with kWatchTold.
//
//   watcher                       agent
//   kWatch   WatchRequest         kWants        at once, and whenever thread_at_gate or the waiting
//                                               allocation changes
//   kAskUse                       kWants
//   kRoom    RoomAnswer           (none)        the allocation is tried again, or fails as it would
//                                               without the agent
//   kLeave                        (none)        the watcher disconnects next, and another one will
//                                               come
//
// While a watcher is connected, an allocation of the program that the driver cannot serve for lack
// of GPU memory, or that would leave less than WatchRequest::spare_mib, waits for kRoom, for
// WatchRequest::longest_wait_ms at most. It fails when the
// watcher disconnects, but not after kLeave: then it waits for the next watcher, for as long.
//
// Two agents use the same packets if one process has opened memory of the other
// (agent/ipc_server.h):
//
//   importer                      exporter
//   kIpcGive IpcRequest           kIpcAnswer    at once; with a descriptor if kGiven (kReady: the
//                                               request names an event, which exists)
//   kIpcWait IpcRequest           kIpcAnswer    kReady, as soon as the exporter's gate is open or,
//                                               for an event, when its last record completes
//   kIpcAway IpcRequest           (none)        the importer disconnects for a suspend and will ask
//                                               for the memory of this connection again
//
// States, and what the agent does in each state when the client disconnects:
//   kOpen      Nothing.
//   kShut      Reopens. The gate is closed, but the program is not quiescent: its work waits for
//              work of another program, which may be blocked at its own gate (kCloseInSteps). Only
//              kRest and kOpen are accepted.
//   kClosed    Reopens, even after an export: the memory is still mapped.
//   kReleased  Stays closed, because the memory is elsewhere; the next client finds this state. An
//              incomplete map (after an error, the end of the client, or the start of another map)
//              is undone: the next map must contain all of the memory.
//              While the agent holds descriptors, it maps the memory again and reopens, since a
//              client may be killed at any moment before the commit. If the driver is checkpointing
//              the process, that happens after the driver has restored and unlocked it; until then
//              the agent answers no client.
//   kMapped    Reopens: all memory is mapped. If a stack limit cannot be restored for lack of
//              memory, the agent retries until it can.
//
// The agent uses this header inside the user's program: libc only.
#pragma once

#include <cstdint>

namespace stasis::agent_protocol {

// Increase this with any incompatible change of a struct. Announce an addition by a new bit of
// AgentHeader::memory instead: a client rejects an agent of any other version, and the agent inside
// a running program cannot be replaced.
inline constexpr uint16_t kVersion = 2;

inline constexpr uint32_t kMagic = 0x53415453;  // "STAS"
inline constexpr uint32_t kMaxBatch = 200;      // the kernel's own bound is 253
inline constexpr uint32_t kMaxDevices = 32;
inline constexpr uint32_t kMaxRanges = 1u << 20;
inline constexpr uint32_t kMaxIpcPeers = 64;

enum class Type : uint16_t {
  kHello = 1,
  kStatus = 2,
  kClose = 3,
  kExport = 4,
  kRelease = 5,
  kMap = 6,
  kOpen = 7,
  kCommit = 8,
  kDescribe = 9,
  kRejoin = 10,
  kOwn = 11,
  kRest = 12,
  kExportRunning = 13,
  kWatch = 14,
  kAskUse = 15,
  kRoom = 16,
  kLeave = 17,
  kAskVisible = 18,
  kIpcGive = 32,
  kIpcWait = 33,
  kIpcAway = 34,
  kReply = 64,
  kHelloReply = 65,
  kRanges = 66,
  kDescription = 67,
  kIpcAnswer = 68,
  kWants = 69,
  kVisible = 70,
};

enum class State : uint32_t { kOpen = 0, kClosed = 1, kReleased = 2, kMapped = 3, kShut = 4 };

enum class Outcome : uint32_t {
  kOk = 0,
  kWrongState = 1,  // the agent's state does not allow the request; nothing was done
  kMalformed = 2,   // the request is not valid
  kBusy = 3,        // another client is connected
  kDeadline = 4,    // the program is not quiesced in time; the gate is open again
  kDriver = 5,      // the driver returned `driver_error`
  kRefused = 6,     // some memory of this program cannot be carried; see the text
  kNoDescriptors = 7,
  // kCloseInSteps: the program was not quiesced in time. In kShut the client continues with kRest.
  // In kOpen a stream was being captured, and the client continues with kClose.
  kNotYet = 8,
};

// Reasons why the agent cannot carry the memory. Bits of HelloReply::blockers.
enum Blocker : uint32_t {
  kBlockerUnknownFunction = 1,  // a look-up returned a GPU function that passes no gate
  kBlockerSharedVmm = 2,        // a handle is shared with another process without the agents
  kBlockerLegacyIpc = 4,        // memory of another process, left to the driver, is open
  kBlockerIpcEvent = 8,         // an event is shared with another process
  kBlockerUnseenThread = 16,    // the agent cannot see when some GPU calls or some work end
};

struct Uuid {
  uint8_t bytes[16];
};

struct Header {
  uint32_t magic;
  uint16_t version;
  Type type;
  uint32_t length;
  uint32_t reserved;
};
static_assert(sizeof(Header) == 16);

enum class RangeKind : uint32_t {
  kLarge = 0,    // one allocation
  kSlab = 1,     // many
  kProgram = 2,  // the program's own handle, mapped any number of times
};

// One memory handle. A packet carries one descriptor for each, except kDescription.
struct Range {
  uint64_t address;  // in the program; for kProgram the first mapping, 0 if unmapped
  uint64_t size_bytes;
  Uuid device;
  RangeKind kind;
  uint32_t protection;   // CUmemAccess_flags of the device itself
  uint64_t peer_access;  // bit n: mapped for the process's device n too
  uint64_t used_bytes;   // for a slab the bytes of its allocations, else size_bytes
};
static_assert(sizeof(Range) == 56);

struct Ranges {
  Header header;
  uint32_t first;  // index of ranges[0] in the whole list
  uint32_t count;  // ranges in this packet; also its descriptors, except in kDescription
  uint32_t total;  // 0 if there is nothing to carry; then this is the only packet
  uint32_t reserved;
  // Only the first `count` elements are sent. kMap reads only the address, the size, and the device
  // on which the memory is now.
  Range ranges[kMaxBatch];
};

enum CloseFlag : uint32_t {
  kCloseKeepFloor = 1,  // leave the contexts' stack limits as they are
  kCloseInSteps = 2,    // if the program is not quiesced in time: kNotYet; the gate stays closed
};

struct CloseRequest {
  Header header;
  uint32_t timeout_ms;
  uint32_t flags;
};

struct RestRequest {
  Header header;
  uint32_t timeout_ms;
  uint32_t calls;  // 0: only waits longer
};

struct ReleaseRequest {
  Header header;
  uint32_t hold;
  uint32_t reserved;
};

struct Reply {
  Header header;
  Outcome outcome;
  int32_t driver_error;  // CUresult
  State state;           // after the request
  uint32_t reserved;
  char text[240];  // a message for the user; NUL-terminated
};

struct DeviceAccount {
  Uuid uuid;
  uint64_t ranges;
  uint64_t range_bytes;  // the bytes that will be moved, with all of each slab
  uint64_t used_bytes;
  uint64_t fast;  // 1: handles can be made and exported here; 0: the driver carries this device
  // Between release and open: the bytes that the lower stack limits have freed. A resume needs them
  // in addition to the bytes of the driver's restore.
  uint64_t floor_bytes;
};

// Memory that stays with the driver.
struct DriverAccount {
  uint64_t tiny_bytes;   // small cuMemAlloc
  uint64_t plain_bytes;  // cuMemAlloc without the fast path, or after it failed
  uint64_t pool_bytes;   // cuMemAllocAsync and related calls
  uint64_t managed_bytes;
  uint64_t host_bytes;         // pinned
  uint64_t program_vmm_bytes;  // the program's own handles that are not carried
  uint64_t arrays;             // the number of arrays ever created
};

// The roles of another process that shares memory with this one through the agents, by CUDA IPC or
// exported handles.
enum IpcRole : uint32_t {
  kIpcUsesOurs = 1,    // it has memory of this process open
  kIpcFreedHere = 2,   // some of that memory was freed here since, so it could not be restored
  kIpcOwnsTheirs = 4,  // this process has memory of it open
};
struct IpcPeer {
  Uuid name;      // HelloReply::ipc_name of its agent
  int32_t pid;    // for messages; in this process's pid namespace
  uint32_t role;  // bits of IpcRole
};

struct HelloReply {
  Header header;
  int32_t pid;  // in the program's own pid namespace
  State state;
  uint8_t build_id[20];
  uint32_t blockers;
  uint32_t device_count;
  uint32_t range_count;
  uint64_t range_bytes;
  uint64_t suspends;  // how often the memory was released
  uint32_t open_captures;
  uint32_t kept_descriptors;
  // Mapped ranges that a resume imported or that belong to another process: the driver alone could
  // not restore them. `imported_bytes` counts only ranges that a resume imported.
  uint32_t imported_ranges;
  uint32_t reserved;
  uint64_t imported_bytes;
  Uuid ipc_name;        // all zero if the process has never shared memory
  uint32_t ipc_ranges;  // the number of other processes' handles that are open here
  uint32_t reserved_ipc;
  uint64_t ipc_bytes;       // the size of their memory
  uint32_t ipc_peer_count;  // may exceed kMaxIpcPeers; then only the first are listed
  IpcPeer ipc_peers[kMaxIpcPeers];
  DriverAccount driver;
  DeviceAccount devices[kMaxDevices];
  char blocker_text[192];
};

enum class IpcOutcome : uint32_t {
  kGiven = 0,   // the packet has one descriptor
  kNotNow = 1,  // the gate is closed; kIpcWait waits until it is open
  kReady = 2,
  kGone = 3,    // there is no such memory (any more)
  kDriver = 4,  // the driver returned `driver_error`
};

struct IpcRequest {
  Header header;
  Uuid from;  // the importer's ipc_name
  uint64_t
      piece;  // the allocation, event or handle to open; 0: open `region` again after a suspend
  uint64_t region;  // a region that was open before a suspend; it may hold other allocations too
};

struct IpcAnswer {
  Header header;
  IpcOutcome outcome;
  int32_t driver_error;
  Uuid device;
  uint64_t region;
  uint64_t region_bytes;
  uint64_t offset;  // of the allocation in the region
  uint64_t bytes;
};

struct WatchRequest {
  Header header;
  uint32_t longest_wait_ms;  // of an allocation, even if no answer comes
  // How much memory of a GPU allocations should leave free, but never more than a sixteenth of it.
  // One that would leave less waits like one that failed. If it must fail, the driver decides.
  uint32_t spare_mib;
};

struct RoomAnswer {
  Header header;
  uint64_t number;     // Wants::number; the agent ignores a number that no longer waits
  uint32_t try_again;  // 0: the allocation fails
  uint32_t reserved;
};

// What the program waits for, and whether it uses its GPUs.
struct Wants {
  Header header;
  uint32_t thread_at_gate;  // 1: in kReleased, a thread of the program waits at the gate
  uint32_t in_call;         // 1: a thread is in a GPU function, for example one that waits for work
  uint64_t calls;           // GPU functions called so far
  // The first allocation that waits. If it fails again after kRoom, it waits again under a new
  // number.
  uint64_t number;    // not used again; 0: no allocation waits
  uint64_t bytes;     // the size that the driver could not allocate
  uint32_t attempts;  // how often this allocation has failed after kRoom
  uint32_t reserved;
  Uuid device;
};
static_assert(sizeof(Wants) == 72);

// The GPUs that the program sees, by its ordinals.
struct Visible {
  Header header;
  uint32_t hides;  // 1: the agent hides other GPUs, which the driver could move the program to
  uint32_t count;
  Uuid gpus[kMaxDevices];
};

union Packet {
  Header header;
  Ranges ranges;
  CloseRequest close;
  RestRequest rest;
  ReleaseRequest release;
  Reply reply;
  HelloReply hello;
  IpcRequest ipc_request;
  IpcAnswer ipc_answer;
  WatchRequest watch;
  RoomAnswer room;
  Wants wants;
  Visible visible;
};

// The agent's exported symbol `stasis_agent_header`, aligned to 64 bytes, in the writable mapping
// of its file. A client reads it from outside (process_vm_readv). The agent accepts
// clients if control_fd >= 0.
inline constexpr char kHeaderMagic[16] = {'S', 't', 'a', 's', 'i',  's',  ' ', 'a',
                                          'g', 'e', 'n', 't', '\r', '\n', 1,   0};
// Says where the memory is, for clients that cannot send a request because CRIU has stopped the
// program. A bit may stay set for a while after its reason is gone, but is never set too late.
enum HeaderMemory : uint32_t {
  kMemoryTold =
      1u << 31,  // this agent maintains the word and supports kOwn; in older agents it is 0
  kStepsTold = 1u << 30,    // not about memory: this agent supports kCloseInSteps and kRest
  kRunningTold = 1u << 29,  // not about memory: this agent supports kExportRunning
  kWatchTold = 1u << 28,    // not about memory: this agent supports kWatch
  kVisibleTold = 1u << 27,  // not about memory: this agent supports kAskVisible
  kMemoryAway = 1,          // the memory is released
  kMemoryImported = 2,      // a resume imported some of it: the driver alone could not restore it
  kMemoryShared = 4,        // another process uses it, or this one uses another's (CUDA IPC)
  // The bits of the features that this version of the agent supports.
  kSupported = kMemoryTold | kStepsTold | kRunningTold | kWatchTold | kVisibleTold,
};
struct alignas(64) AgentHeader {
  char magic[16];
  uint16_t version;
  uint16_t size;
  // In the process's own pid namespace. A forked child has its parent's pid here until it makes its
  // own control socket.
  int32_t pid;
  int32_t control_fd;  // the end of a socket pair that clients duplicate with pidfd_getfd; -1: none
  uint32_t memory;     // HeaderMemory
  // The seconds of the control socket's SO_RCVTIMEO. They identify the socket, because the program
  // may have closed it and opened another file under its number. Unlike an inode they survive a
  // dump and restore.
  uint64_t control_mark;
  uint8_t build_id[20];
};

}  // namespace stasis::agent_protocol
