#include "agent/requests.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/blockers.h"
#include "agent/carrier.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/floor.h"
#include "agent/cuda/held_memory.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/visible.h"
#include "agent/descriptors.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/header.h"
#include "agent/ipc_server.h"
#include "agent/rest.h"
#include "agent_protocol/packet.h"

namespace stasis::agent {
namespace {

using agent_protocol::Io;
using agent_protocol::Outcome;
using agent_protocol::State;
using agent_protocol::Type;

// A client that hangs in the middle of a request must not block the program.
constexpr int kAnswerTimeoutMs = 10 * 1000;
constexpr size_t kTextBytes = 200;  // the size of a text in an answer

Watched g_client;
// The last rejected client. If its socket were closed at once, the client would lose the answer.
Watched g_refused;
State g_state = State::kOpen;
bool g_holding = false;  // true while descriptors of released memory are held
bool g_lower_floor = false;
uint32_t g_next_to_map = 0;
uint64_t g_suspends = 0;

// Updates the bits about memory in the header. A reader of the header must never find the memory
// present while it is away.
void NoteMemory(uint32_t more = 0) {
  uint32_t memory = more;
  if (g_state == State::kReleased) memory |= agent_protocol::kMemoryAway;
  if (ImportedAreMapped()) memory |= agent_protocol::kMemoryImported;
  NoteInHeader(agent_protocol::kMemoryAway | agent_protocol::kMemoryImported, memory);
}

void Answer(Outcome outcome, const char* text = "", CUresult error = CUDA_SUCCESS) {
  agent_protocol::Reply reply{};
  reply.outcome = outcome;
  reply.driver_error = error;
  reply.state = g_state;
  snprintf(reply.text, sizeof(reply.text), "%s", text);
  agent_protocol::Send(g_client.fd, &reply, Type::kReply, sizeof(reply), nullptr, 0,
                       kAnswerTimeoutMs);
}

void AnswerDriver(CUresult error, const char* what) {
  const char* name = nullptr;
  real::cuGetErrorName(error, &name);
  char text[sizeof(agent_protocol::Reply::text)];
  snprintf(text, sizeof(text), "%s: %s", what, name != nullptr ? name : "unknown error");
  Answer(Outcome::kDriver, text, error);
}

void AnswerWrongState(const char* verb) {
  static const char* const kNames[] = {"open", "closed", "released", "mapped", "shut"};
  char text[80];
  snprintf(text, sizeof(text), "cannot %s in state \"%s\"", verb, kNames[uint32_t(g_state)]);
  Answer(Outcome::kWrongState, text);
}

void AnswerNoBarrier() {
  Answer(
      Outcome::kRefused,
      "the kernel refuses the system call membarrier, which it allowed at the start of the program "
      "(perhaps a new seccomp filter); without it the gate cannot close");
}

void AnswerHello() {
  agent_protocol::HelloReply reply{};
  reply.pid = getpid();
  reply.state = g_state;
  memcpy(reply.build_id, stasis_agent_header.build_id, sizeof(reply.build_id));
  reply.blockers = Blockers(reply.blocker_text, sizeof(reply.blocker_text));
  reply.suspends = g_suspends;
  reply.open_captures = CapturesOpen();
  reply.driver = DriverAccountNow();
  CountCarried(&reply);
  DescribeIpc(&reply);
  agent_protocol::Send(g_client.fd, &reply, Type::kHelloReply, sizeof(reply), nullptr, 0,
                       kAnswerTimeoutMs);
}

void AnswerVisible() {
  agent_protocol::Visible reply{};
  DescribeVisible(g_state == State::kOpen, &reply);
  agent_protocol::Send(g_client.fd, &reply, Type::kVisible, sizeof(reply), nullptr, 0,
                       kAnswerTimeoutMs);
}

// Restores the program and opens the gate. After an error, which `text` describes, the gate stays
// closed.
CUresult Reopen(char* text, size_t size) {
  snprintf(text, size, "restoring a stack limit");
  if (!RejoinImports(text, size)) return CUDA_ERROR_MAP_FAILED;
  if (CUresult r = RaiseFloor(); r != CUDA_SUCCESS) return r;
  g_state = State::kOpen;
  gate::Open();
  return CUDA_SUCCESS;
}

}  // namespace

void ReopenAlone() {
  char ignored[kTextBytes];
  Reopen(ignored, sizeof(ignored));
}

namespace {

// Called when all of the process's own memory is mapped again. From now on importers may ask for
// it.
void BecomeMapped() {
  g_state = State::kMapped;
  ResumeIpc();
}

// A resume must be able to keep a descriptor for each range, or the program would stay without
// memory.
bool DescriptorsFit(char* text, size_t size) {
  agent_protocol::HelloReply account{};
  CountCarried(&account);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  uint64_t missing = account.range_count - account.kept_descriptors;
  uint64_t needed = OpenDescriptors() + missing + uint64_t{2} * agent_protocol::kMaxBatch;
  if (needed <= limit.rlim_cur) return true;
  snprintf(text, size, "the program would need %llu file descriptors and may have %llu (ulimit -n)",
           static_cast<unsigned long long>(needed),
           static_cast<unsigned long long>(limit.rlim_cur));
  return false;
}

// Leaves the state kShut and opens the gate. All memory is still mapped in that state.
void ReopenShut() {
  g_state = State::kOpen;
  gate::Open();
}

// Waits behind the closed gate until the program is quiescent, and answers the client. At
// `deadline` the gate opens again, unless the client continues in steps.
void Quiesce(int64_t deadline, bool in_steps) {
  g_state = State::kShut;
  const Unrest unrest = AwaitRest(deadline);
  const bool failed = unrest.no_barrier || unrest.error != CUDA_SUCCESS;
  if (unrest.why != nullptr && in_steps && !failed) return Answer(Outcome::kNotYet, unrest.why);
  char text[kTextBytes];
  auto outcome = Outcome::kOk;
  if (unrest.why != nullptr) {
    outcome = Outcome::kDeadline;
    snprintf(text, sizeof(text), "%s; the program continues", unrest.why);
  } else if (!ListCarried()) {
    outcome = Outcome::kDriver;
  } else if (Blockers(text, sizeof(text)) != 0 || !ImportsAreKnown(text, sizeof(text))) {
    // Check again, because a blocker may have been noted while the gate was closing. Refuse imports
    // that their owner has no record of, because they would be lost.
    outcome = Outcome::kRefused;
  }
  if (outcome == Outcome::kOk) {
    g_state = State::kClosed;
    return Answer(Outcome::kOk);
  }
  ReopenShut();
  if (unrest.no_barrier) return AnswerNoBarrier();
  if (failed) return AnswerDriver(unrest.error, unrest.why);
  if (outcome == Outcome::kDriver) return AnswerDriver(CUDA_ERROR_OUT_OF_MEMORY, "listing memory");
  Answer(outcome, text);
}

void OnClose(const agent_protocol::CloseRequest& request) {
  if (g_state != State::kOpen) return AnswerWrongState("close");
  char text[kTextBytes];
  if (Blockers(text, sizeof(text)) != 0) return Answer(Outcome::kRefused, text);
  if (!KeptAreIntact()) {
    return Answer(Outcome::kRefused, "the program has closed file descriptors of the stasis agent");
  }
  if (!DescriptorsFit(text, sizeof(text))) return Answer(Outcome::kNoDescriptors, text);
  const int64_t deadline = NowNs() + int64_t(request.timeout_ms) * 1000000;
  g_lower_floor = (request.flags & agent_protocol::kCloseKeepFloor) == 0;
  const bool in_steps = (request.flags & agent_protocol::kCloseInSteps) != 0;
  if (!ShutBetweenCaptures(deadline)) {
    if (in_steps) return Answer(Outcome::kNotYet, "a stream capture did not end");
    return Answer(Outcome::kDeadline, "a stream capture did not end; the program continues");
  }
  Quiesce(deadline, in_steps);
}

// The program's work may wait for work that another program has not submitted yet. So the client
// lets each program make a few more calls, step by step, until no work waits for another program.
void OnRest(const agent_protocol::RestRequest& request) {
  if (g_state != State::kClosed && g_state != State::kShut) return AnswerWrongState("rest");
  const int64_t deadline = NowNs() + int64_t(request.timeout_ms) * 1000000;
  if (request.calls != 0 || CapturesOpen() != 0) {
    g_state = State::kShut;
    LetThrough(request.calls, deadline);
  }
  Quiesce(deadline, /*in_steps=*/true);
}

// Returns false if the client has disconnected.
bool OnList(bool with_descriptors) {
  if (with_descriptors ? g_state != State::kClosed : g_state == State::kOpen) {
    AnswerWrongState(with_descriptors ? "export" : "describe");
    return true;
  }
  static agent_protocol::Ranges
      packet;  // static, because some programs have small stacks; there is one client
  packet.total = CarriedCount();
  packet.first = 0;
  do {
    packet.count = 0;
    int fds[agent_protocol::kMaxBatch];
    CUresult r = CUDA_SUCCESS;
    while (packet.count < agent_protocol::kMaxBatch && packet.first + packet.count < packet.total) {
      uint32_t index = packet.first + packet.count;
      if (with_descriptors) r = ExportCarried(index, &fds[packet.count]);
      if (r != CUDA_SUCCESS) break;
      packet.ranges[packet.count++] = DescribeCarried(index);
    }
    if (r != CUDA_SUCCESS) {
      agent_protocol::CloseAll(fds, packet.count);
      AnswerDriver(r, "exporting memory");
      return true;
    }
    const uint32_t sent = with_descriptors ? packet.count : 0;
    Io io = agent_protocol::Send(
        g_client.fd, &packet, with_descriptors ? Type::kRanges : Type::kDescription,
        offsetof(agent_protocol::Ranges, ranges) + packet.count * sizeof(agent_protocol::Range),
        fds, sent, kAnswerTimeoutMs);
    agent_protocol::CloseAll(fds, sent);
    if (io != Io::kOk) return false;
    packet.first += packet.count;
  } while (packet.first < packet.total);
  return true;
}

// Returns false if the client has disconnected. The list may be incomplete after an error; the
// client then copies less memory ahead of the pause.
bool OnExportRunning() {
  if (g_state != State::kOpen) {
    AnswerWrongState("export running memory");
    return true;
  }
  NoteCopyBegins();
  static agent_protocol::Ranges packet;  // static, like that of OnList
  packet.first = 0;
  do {
    int fds[agent_protocol::kMaxBatch];
    packet.count = ExportRunning(packet.first, agent_protocol::kMaxBatch, packet.ranges, fds);
    const bool more = packet.count == agent_protocol::kMaxBatch;
    packet.total = packet.first + packet.count + (more ? 1 : 0);
    Io io = agent_protocol::Send(
        g_client.fd, &packet, Type::kRanges,
        offsetof(agent_protocol::Ranges, ranges) + packet.count * sizeof(agent_protocol::Range),
        fds, packet.count, kAnswerTimeoutMs);
    agent_protocol::CloseAll(fds, packet.count);
    if (io != Io::kOk) return false;
    packet.first += packet.count;
  } while (packet.first < packet.total);
  return true;
}

void OnRelease(const agent_protocol::ReleaseRequest& request) {
  if (g_state != State::kClosed) return AnswerWrongState("release");
  NoteMemory(agent_protocol::kMemoryAway);
  CUresult error = CUDA_SUCCESS;
  const bool hold = request.hold != 0;
  for (uint32_t i = 0; hold && i < CarriedCount(); ++i) {
    if (CUresult r = HoldCarried(i); r != CUDA_SUCCESS) return AnswerDriver(r, "holding memory");
  }
  PauseIpc();
  error = ReleaseImports();
  for (uint32_t i = 0; i < CarriedCount(); ++i) {
    CUresult r = ReleaseCarried(i, hold);
    if (error == CUDA_SUCCESS) error = r;
  }
  if (g_lower_floor) LowerFloor();
  // Set the state even after an error: released memory must be mapped again before the gate may
  // open.
  g_state = State::kReleased;
  g_holding = hold;
  g_next_to_map = 0;
  ++g_suspends;
  if (error != CUDA_SUCCESS) return AnswerDriver(error, "releasing memory");
  Answer(Outcome::kOk);
}

// Abandons an incomplete map: the next map starts from the beginning. While descriptors are held,
// the mapped memory is the held memory, and dropping it would free nothing.
void AbandonMap() {
  g_next_to_map = 0;
  if (!g_holding) DropReturned();
}

// Maps one batch. `fds` stay the caller's.
void OnMap(const agent_protocol::Ranges& request, const int* fds) {
  if (g_state != State::kReleased) return AnswerWrongState("map");
  if (request.first == 0 && g_next_to_map != 0) AbandonMap();
  if (request.total != CarriedCount() || request.first != g_next_to_map) {
    AbandonMap();
    return Answer(Outcome::kMalformed, "the list of memory differs from the one that was exported");
  }
  for (uint32_t i = 0; i < request.count; ++i) {
    agent_protocol::Range mine = DescribeCarried(request.first + i);
    if (mine.address != request.ranges[i].address ||
        mine.size_bytes != request.ranges[i].size_bytes) {
      AbandonMap();
      return Answer(Outcome::kMalformed,
                    "a range of memory differs from the one that was exported");
    }
  }
  for (uint32_t i = 0; i < request.count; ++i) {
    MoveCarried(request.first + i, request.ranges[i].device);
    if (IsMapped(request.first + i)) continue;  // because a release or drop failed half way
    if (CUresult r = MapCarried(request.first + i, fds[i]); r != CUDA_SUCCESS) {
      AbandonMap();
      return AnswerDriver(r, "mapping memory");
    }
  }
  g_next_to_map = request.first + request.count;
  if (g_next_to_map == request.total) {
    ApplyMoves();
    BecomeMapped();
  }
  Answer(Outcome::kOk);
}

void OnOwn() {
  if (g_state != State::kClosed) return AnswerWrongState("copy imported memory");
  for (uint32_t i = 0; i < CarriedCount(); ++i) {
    CUresult r = OwnCarried(i);
    if (r == CUDA_SUCCESS) continue;
    if (!IsMapped(i)) {
      // The memory is held, as after a release, and is mapped again when the client disconnects.
      PauseIpc();
      g_state = State::kReleased;
      g_holding = true;
    }
    return AnswerDriver(r, "copying imported memory into memory of the program");
  }
  Answer(Outcome::kOk);
}

void OnCommit() {
  if (g_state != State::kReleased) return AnswerWrongState("commit");
  LetGoOfCarried();
  g_holding = false;
  Answer(Outcome::kOk);
}

void OnOpen() {
  if (g_state == State::kShut) {
    ReopenShut();
    return Answer(Outcome::kOk);
  }
  if (g_state != State::kClosed && g_state != State::kMapped) return AnswerWrongState("open");
  char text[kTextBytes];
  if (CUresult r = Reopen(text, sizeof(text)); r != CUDA_SUCCESS) return AnswerDriver(r, text);
  Answer(Outcome::kOk);
}

void OnRejoin() {
  if (g_state != State::kClosed && g_state != State::kMapped) return AnswerWrongState("rejoin");
  char text[kTextBytes];
  if (!RejoinImports(text, sizeof(text))) return AnswerDriver(CUDA_ERROR_MAP_FAILED, text);
  Answer(Outcome::kOk);
}

void EndClient() {
  NoteCopyIsLost();
  g_refused.Close();
  g_client.Close();  // last, because its client waits for this close
  if (g_state == State::kShut) return ReopenShut();
  if (g_state == State::kClosed || g_state == State::kMapped) {
    ReopenAlone();
    return;
  }
  if (g_state != State::kReleased) return;
  AbandonMap();
  if (!g_holding) return;
  // Mapping the memory blocks while the driver has the process locked. After an error the state is
  // unchanged, and the next client may map its copy of the memory.
  if (TakeBackCarried() != CUDA_SUCCESS) return;
  g_holding = false;
  BecomeMapped();
  NoteMemory();
  ReopenAlone();
}

void Serve() {
  static agent_protocol::Packet packet;
  int fds[agent_protocol::kMaxBatch];
  uint32_t count = 0;
  Io io = agent_protocol::Receive(g_client.fd, &packet, fds, &count, 0);
  if (io == Io::kTimeout) return;
  if (io != Io::kOk) {
    if (io == Io::kBad) Answer(Outcome::kMalformed, "not a request");
    return EndClient();
  }
  bool goes_on = true;
  NoteCopyEnds();
  switch (packet.header.type) {
    case Type::kHello:
    case Type::kStatus:
      AnswerHello();
      break;
    case Type::kAskVisible:
      AnswerVisible();
      break;
    case Type::kClose:
      OnClose(packet.close);
      break;
    case Type::kRest:
      OnRest(packet.rest);
      break;
    case Type::kExport:
      goes_on = OnList(/*with_descriptors=*/true);
      break;
    case Type::kExportRunning:
      goes_on = OnExportRunning();
      break;
    case Type::kDescribe:
      goes_on = OnList(/*with_descriptors=*/false);
      break;
    case Type::kRelease:
      OnRelease(packet.release);
      break;
    case Type::kCommit:
      OnCommit();
      break;
    case Type::kMap:
      OnMap(packet.ranges, fds);
      break;
    case Type::kOwn:
      OnOwn();
      break;
    case Type::kOpen:
      OnOpen();
      break;
    case Type::kRejoin:
      OnRejoin();
      break;
    default:
      Answer(Outcome::kMalformed, "not a request");
      goes_on = false;
  }
  agent_protocol::CloseAll(fds, count);
  NoteMemory();
  if (!goes_on) EndClient();
}

}  // namespace

void AdmitClient(int socket) {
  if (!g_client.Holds()) {
    EndClient();  // the program may have closed the client's descriptor
    g_client.Take(socket);
    return;
  }
  agent_protocol::Reply reply{};
  reply.outcome = Outcome::kBusy;
  reply.state = g_state;
  snprintf(reply.text, sizeof(reply.text), "another client is connected");
  agent_protocol::Send(socket, &reply, Type::kReply, sizeof(reply), nullptr, 0, 0);
  g_refused.Close();
  g_refused.Take(socket);
}

int ClientSocket() { return g_client.fd; }

void HearClient() {
  if (g_client.Holds()) {
    Serve();
  } else {
    EndClient();
  }
}

bool MemoryIsAway() { return g_state == State::kReleased; }

bool ReopenIsDue() { return g_state == State::kMapped && !g_client.Holds(); }

void ResetRequests() {
  g_client.Close();
  g_refused.Close();
  g_state = State::kOpen;
  g_holding = false;
  g_suspends = 0;
}

}  // namespace stasis::agent
