// The launchers of the tasks of a step on one node (--stasis=together) find each other, and talk
// over Unix sockets of packets. The launcher of the first task leads; the others are members.
//
//   member -> leader   kHere     once: the name of its task, its local number in `value`
//                      kSignal   `value`: a signal for the task's program
//   leader -> member   kBegun    all tasks are here, and the programs are started or restored
//                      kEnd      `value`: the exit code with which the member ends
//                      kReject   the reason why the leader does not admit this launcher
//   end-of-file        the other launcher has ended
//
// The socket is in the state folder, which may be on a file system that nodes share. A socket of
// another node or of a dead process in its place is normal: it refuses connections, and the leader
// replaces it.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "slurm/node_files.h"

namespace stasis::slurm {

enum class NodeWord : uint32_t { kHere = 1, kBegun, kSignal, kEnd, kReject };

struct NodeMessage;

// A place on the node for the launchers of one start of a step.
struct NodeMeeting {
  std::string folder;  // has the socket
  std::string name;    // of the common job, slurm-JOB.STEP.nNODE
  int restarts = 0;    // how often the job was requeued
  int count = 0;       // tasks of the step on this node
};

// Waits for events of the launcher's own, such as signals: `fd` becomes readable for them, and
// `stops` handles them and returns true if the launcher must end. Then the wait returns kCancelled.
struct NodeWait {
  Deadline deadline;
  int fd = -1;
  std::function<bool()> stops;
};

// Not safe to call from several threads.
class NodeLeader {
 public:
  // Opens the socket. `task`: the name of the leader's task, whose local number is 0.
  static Result<NodeLeader> Listen(const NodeMeeting& meeting, const std::string& task);
  ~NodeLeader();
  NodeLeader(NodeLeader&&) = default;
  NodeLeader& operator=(NodeLeader&&) = delete;

  // Waits until all tasks are here, and removes the socket. Returns kDeadlineExceeded with the
  // missing ones. A process of another user, and a launcher of another start, is rejected.
  Status Gather(const NodeWait& wait);

  // The names of the tasks by their local numbers.
  const std::vector<std::string>& tasks() const { return tasks_; }
  void SendBegun();
  // Does nothing if the member has ended.
  void SendEnd(int local, int code);
  // Ends launchers that Gather() has not seen.
  void SendEndToUnknown(int code);

  // Adds the members' sockets, which become readable for Read().
  void AddTo(std::vector<pollfd>& polls) const;
  // Returns the signals that members have asked for. A member that has ended is reported once, with
  // signal 0.
  std::vector<TaskSignal> Read();

 private:
  NodeLeader(NodeMeeting meeting, const std::string& task);
  void Accept();
  void ReadFirst();
  std::string WhyNoMember(const NodeMessage& message) const;
  bool IsComplete() const;
  std::string Missing() const;

  NodeMeeting meeting_;
  UniqueFd folder_;
  UniqueFd listener_;
  std::vector<UniqueFd> unknown_;  // have not sent kHere
  std::vector<UniqueFd> members_;  // by local numbers; the leader's own is empty
  std::vector<std::string> tasks_;
};

class NodeMember {
 public:
  // Waits for the leader and introduces this task to it. `watch`: becomes readable when a file is
  // moved into the meeting's folder (watch.h).
  static Result<NodeMember> Join(const NodeMeeting& meeting, const std::string& task, int local,
                                 const UniqueFd& watch, const NodeWait& wait);

  // Becomes readable for Read().
  int fd() const { return socket_.get(); }
  struct News {
    bool begun = false;
    bool leader_ended = false;    // without kEnd
    std::string rejected;         // the reason; empty if it was not
    std::optional<int> end_code;  // of kEnd
  };
  News Read();
  void SendSignal(int signal);

 private:
  explicit NodeMember(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

}  // namespace stasis::slurm
