// What a client and the agent inside a program say to each other: the header by which the agent is
// found, and the messages on a SOCK_SEQPACKET socket. Plain structs of one machine, never on disk.
//
// Every message is one packet: a Header, then the struct that its type names; `length` is that of
// the whole packet and is checked before anything else is read. A client sends a request and reads
// its answer before the next one. File descriptors travel in batches of at most kMaxBatch.
//
//   client                        agent
//   kHello                        kHelloReply
//   kStatus                       kHelloReply
//   kClose   CloseRequest         kReply        gate closed, contexts drained
//   kExport                       kRanges …     at least one; each with `count` descriptors
//   kRelease ReleaseRequest       kReply        the memory is only the receiver's now;
//                                               with `hold` the agent keeps descriptors too;
//                                               stack limits are lowered (CloseRequest::flags)
//   kCommit                       kReply        the agent has closed those that it held
//   kMap     Ranges, descriptors  kReply        one a batch, in the order of the export
//   kOwn                          kReply        what came back by a resume is copied into memory of
//                                               the program's own, which the driver alone can
//                                               carry; an error (kDriver) leaves the rest as it
//                                               was. For agents that tell (kMemoryTold)
//   kRest    RestRequest          kReply        of an agent that was asked to close in steps:
//                                               `calls` more calls of the program go through, then
//                                               as kClose
//   kOpen                         kReply        stack limits are as they were, the program runs
//                                               on; an error (kDriver) leaves the gate closed, and
//                                               it can be asked again
//   kDescribe                     kDescription … what is or was exported, without descriptors; in
//                                               every state but kOpen
//   kRejoin                       kReply        what the program has open of other processes'
//   memory
//                                               (CUDA IPC) is mapped again, by their agents, who
//                                               must have mapped it; kOpen does what is left of it
//
// Agents talk to each other in the same packets, where one process has opened memory of another
// (agent/ipc_server.h):
//
//   importer                      exporter
//   kIpcGive IpcRequest           kIpcAnswer    with a descriptor when kGiven; at once
//                                               (kReady: it names an event, which is there)
//   kIpcWait IpcRequest           kIpcAnswer    kReady, as soon as its gate is open; or, of an
//                                               event, when what was last recorded is reached
//   kIpcAway IpcRequest           (none)        the end that follows is for a suspend: what was
//                                               given on this connection will be asked for again
//
// States, and what the end of the client's socket does in them:
//   kOpen      Nothing.
//   kShut      Reopens. The gate is shut, but the program has not come to rest: work of it waits
//   for
//              another program's, maybe one that stands at a gate (kCloseInSteps). Nothing but
//              kRest and kOpen is answered.
//   kClosed    Reopens, also after an export: nothing has been given up.
//   kReleased  Stays closed, for the memory is elsewhere; the next client finds it so. What a map
//              has brought that did not complete (an error, the client's end, another one that
//              begins) is given up: the next one brings all of it.
//              While the agent holds descriptors, it maps the memory again and reopens: a
//              coordinator may die at any moment before the commit. Where the driver has been told
//              to checkpoint the process, that happens when it has restored and unlocked it, and
//              until then the agent answers nobody.
//   kMapped    Reopens: everything is back. Where a stack limit cannot be, for lack of memory,
//              it is tried again until it can.
//
// This header is used by a library that enters other people's processes: libc only.
#pragma once

#include <cstdint>

namespace stasis::wire {

// Bump with any change of any struct here. What is only added is told in AgentHeader::memory. A
// client refuses an agent of another version: an agent inside a running program cannot be replaced,
// so a client has to know the versions it speaks.
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
  kIpcGive = 32,
  kIpcWait = 33,
  kIpcAway = 34,
  kReply = 64,
  kHelloReply = 65,
  kRanges = 66,
  kDescription = 67,
  kIpcAnswer = 68,
};

enum class State : uint32_t { kOpen = 0, kClosed = 1, kReleased = 2, kMapped = 3, kShut = 4 };

enum class Outcome : uint32_t {
  kOk = 0,
  kWrongState = 1,  // the verb does not belong to the agent's state; nothing was done
  kMalformed = 2,   // the request makes no sense; the connection ends
  kBusy = 3,        // another client is connected
  kDeadline = 4,    // the gate was opened again, the program runs on
  kDriver = 5,      // the driver said `driver_error`
  kRefused = 6,     // this program has something that cannot be carried; see the text
  kNoDescriptors = 7,
  kNotYet = 8,  // kShut: it has not come to rest in the time that was given. kOpen: nor been shut,
                // for a stream was being captured; kClose may be asked again
};

// Why memory cannot be carried by the fast path. Bits of HelloReply::blockers.
enum Blocker : uint32_t {
  kBlockerUnknownFunction = 1,  // a look-up gave a GPU function that passes no gate of ours
  kBlockerSharedVmm = 2,        // a handle is shared with another process past the agents
  kBlockerLegacyIpc = 4,        // memory of another process, left to the driver, is open
  kBlockerIpcEvent = 8,         // an event is shared with another process
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

// One handle, and with it one descriptor.
struct Range {
  uint64_t address;  // where the program has it; of kProgram its first mapping, 0 when unmapped
  uint64_t size_bytes;
  Uuid device;
  RangeKind kind;
  uint32_t protection;   // CUmemAccess_flags of the device itself
  uint64_t peer_access;  // bit n: mapped for the process's device n too
  uint64_t used_bytes;   // of a slab: what allocations have; else size_bytes
};
static_assert(sizeof(Range) == 56);

struct Ranges {
  Header header;
  uint32_t first;  // index of ranges[0] in the whole list
  uint32_t count;  // ranges in this packet, and descriptors but for kDescription
  uint32_t total;  // 0: there is nothing to carry; then this is the only packet
  uint32_t reserved;
  Range ranges[kMaxBatch];  // only `count` of them are sent; of kMap only address, size and
                            // device are read: where the memory is now
};

enum CloseFlag : uint32_t {
  kCloseKeepFloor = 1,  // leave the contexts' stack limits as they are
  kCloseInSteps = 2,    // what is not at rest in time is kNotYet, and the gate stays shut
};

struct CloseRequest {
  Header header;
  uint32_t timeout_ms;
  uint32_t flags;
};

struct RestRequest {
  Header header;
  uint32_t timeout_ms;
  uint32_t calls;  // 0: only waits on
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
  char text[240];  // for people; always ends with a zero
};

struct DeviceAccount {
  Uuid uuid;
  uint64_t ranges;
  uint64_t range_bytes;  // what will travel: slabs count whole
  uint64_t used_bytes;
  uint64_t fast;  // 1: handles can be made and exported here; 0: the driver carries this device
  // Between release and open: what the lowered stack limits gave back. A resume needs it again,
  // beyond what the driver's restore takes.
  uint64_t floor_bytes;
};

// Memory that stays with the driver.
struct DriverAccount {
  uint64_t tiny_bytes;   // small cuMemAlloc
  uint64_t plain_bytes;  // cuMemAlloc where there is no fast path, or while it was refused
  uint64_t pool_bytes;   // cuMemAllocAsync and its kin
  uint64_t managed_bytes;
  uint64_t host_bytes;         // pinned
  uint64_t program_vmm_bytes;  // the program's own handles that are not carried
  uint64_t arrays;             // how many were ever made
};

// Another process with whose agent this one has shared memory, by CUDA IPC or exported handles.
enum IpcRole : uint32_t {
  kIpcUsesOurs = 1,    // it has memory of this process open
  kIpcFreedHere = 2,   // and some of that was freed here since: nobody could bring it back
  kIpcOwnsTheirs = 4,  // this process has memory of it open
};
struct IpcPeer {
  Uuid name;      // HelloReply::ipc_name of its agent
  int32_t pid;    // for people; in this process's pid namespace
  uint32_t role;  // of IpcRole
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
  uint64_t suspends;  // how often the memory was given up
  uint32_t open_captures;
  uint32_t kept_descriptors;
  // Mapped and come back by a resume, or of another process: the driver alone could not restore
  // these. The bytes are of the former only.
  uint32_t imported_ranges;
  uint32_t reserved;
  uint64_t imported_bytes;
  Uuid ipc_name;        // all zero: it has never shared memory
  uint32_t ipc_ranges;  // handles of other processes' memory that are open here, and
  uint32_t reserved_ipc;
  uint64_t ipc_bytes;       // their sizes
  uint32_t ipc_peer_count;  // more than kMaxIpcPeers: only the first are named
  IpcPeer ipc_peers[kMaxIpcPeers];
  DriverAccount driver;
  DeviceAccount devices[kMaxDevices];
  char blocker_text[192];
};

enum class IpcOutcome : uint32_t {
  kGiven = 0,   // one descriptor comes with it
  kNotNow = 1,  // the gate is closed; kIpcWait tells when it is open
  kReady = 2,
  kGone = 3,    // there is no such memory (any more)
  kDriver = 4,  // the driver said `driver_error`
};

struct IpcRequest {
  Header header;
  Uuid from;        // who asks: its ipc_name
  uint64_t piece;   // what is opened: allocation, event, handle; 0: `region` was, before a suspend
  uint64_t region;  // its handle, which may hold others beside it
};

struct IpcAnswer {
  Header header;
  IpcOutcome outcome;
  int32_t driver_error;
  Uuid device;
  uint64_t region;
  uint64_t region_bytes;
  uint64_t offset;  // of the allocation in it
  uint64_t bytes;
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
};

// The agent's exported symbol `stasis_agent_header`, 64 bytes aligned, in the writable mapping of
// its file. A client reads it from outside (process_vm_readv); it has a
// door when door_fd >= 0.
inline constexpr char kHeaderMagic[16] = {'S', 't', 'a', 's', 'i',  's',  ' ', 'a',
                                          'g', 'e', 'n', 't', '\r', '\n', 1,   0};
// Where the memory is, for who may not wait for an answer: a program that CRIU holds gives none. A
// bit may stay set for a while after what it says is over, never the other way round.
enum HeaderMemory : uint32_t {
  kMemoryTold = 1u << 31,  // this agent keeps the word, and knows kOwn; older ones left it 0
  kStepsTold = 1u << 30,   // not of memory: this agent knows kCloseInSteps and kRest
  kMemoryAway = 1,         // it was given up
  kMemoryImported = 2,  // some of it came back by a resume: the driver alone could not restore it
  kMemoryShared = 4,    // another process uses it, or it uses another's (CUDA IPC)
};
struct alignas(64) AgentHeader {
  char magic[16];
  uint16_t version;
  uint16_t size;
  int32_t pid;         // in the process's own pid namespace; a forked child's differs until it
                       // has made a door of its own
  int32_t door_fd;     // the end of a socket pair that clients take with pidfd_getfd; -1: none
  uint32_t memory;     // HeaderMemory
  uint64_t door_mark;  // the seconds of that socket's SO_RCVTIMEO, by which it is known: a program
                       // may have closed it and opened something else. Unlike an inode it comes
                       // through a dump and restore.
  uint8_t build_id[20];
};

}  // namespace stasis::wire
