// System calls that may block forever: on a network file system whose server is gone, on a dying
// disk, or on memory whose pages another program supplies (FUSE, userfaultfd). They run in a child
// process that can be killed.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis {

// Records the next step, for the error if that step blocks: "read the environment of process 4711".
using NoteStep = std::function<void(const std::string& step)>;

// Longer answers are truncated.
inline constexpr size_t kLongestAnswer = 64u << 20;

struct BoundedOptions {
  // Descriptors that stay open in the child, with the same numbers. All others are closed there.
  std::vector<int> keep_fds;
  // Called at the start and whenever this thread gets a signal. If it returns true, AskBounded
  // kills the child and returns kCancelled.
  std::function<bool()> cancelled;
  // If positive, replaces the deadline: the question fails if it writes nothing for this long. If
  // the question records each of its steps, AskBounded gives up only when it makes no progress.
  std::chrono::milliseconds each_step{0};
};

// Runs `question` in a child process and returns its answer. Returns kDeadlineExceeded with the
// last recorded step if no answer arrives by the deadline, and kills the child. A child that blocks
// uninterruptibly in the kernel survives this; the error says so. Such a child holds no descriptors
// except those in `keep_fds`. Changes that the question makes to memory are lost. Safe to call from
// any thread that holds no lock.
Result<std::string> AskBounded(const std::function<Result<std::string>(const NoteStep&)>& question,
                               const Deadline& deadline, const BoundedOptions& options = {});

// The following functions are for other code that forks child processes of this kind.

// Points descriptors 0, 1 and 2 at /dev/null and closes all others except `kept`. A blocked child
// must hold no pipe end and no lock that another process waits for. Async-signal-safe once `kept`
// is built.
void CloseAllBut(std::vector<int> kept);
// Serialize a result, and parse it again. The contexts of an error become part of its message.
std::string ToBytes(const Result<std::string>& answer);
Result<std::string> FromBytes(const std::string& bytes);

}  // namespace stasis
