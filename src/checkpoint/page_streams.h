// Receives the CPU memory of a program from CRIU while the program is stopped, without storage.
//
// CRIU writes memory to files pages-1.img, pages-2.img, … of its folder, one for each process and
// for each piece of shared memory, one after the other. Here these names are symbolic links to
// pipes that CRIU has inherited. CRIU splices pages of the program into a pipe without a copy, and
// several threads of this process read them into memory that was touched before the program was
// stopped:
//
//   FOLDER/pages-1.img -> /proc/self/fd/30 = a pipe -> a shared mapping of this process
//
// The mapping is shared with child processes that are forked after Reserve. It has no name, so a
// killed operation leaves no memory behind. CRIU gets EPIPE, and the program continues, if this
// process dies. A file whose name has no pipe is a file in the folder, as without this class.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/thread.h"
#include "store/page_writer.h"

namespace stasis::checkpoint {

// Where a file of pages is in the memory of PageStreams.
struct StreamedFile {
  std::string name;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

// Not thread-safe, except where stated.
class PageStreams {
 public:
  // Files that get a pipe. The kernel limits the memory of all pipes of a user.
  static constexpr size_t kMostFiles = 32;

  // Reserves addresses for `most_bytes` and touches the first `expected_bytes`, so that pages need
  // not be allocated while the program is stopped. Returns kResourceExhausted if the kernel has no
  // memory for them.
  static Result<std::unique_ptr<PageStreams>> Reserve(uint64_t expected_bytes, uint64_t most_bytes);
  ~PageStreams();
  PageStreams(const PageStreams&) = delete;
  PageStreams& operator=(const PageStreams&) = delete;

  // Creates pipes for the first `files` files, at most kMostFiles, and links in CRIU's folder.
  // Fails, with no link left, if the file system has no symbolic links.
  Status Link(int folder_fd, size_t files);
  // The descriptors that CRIU must inherit: its number in CRIU, and the one here.
  std::map<int, int> descriptors() const;
  // Starts the threads. Call it before CRIU writes, and after the last fork of a child process that
  // uses this object.
  Status Start();
  // Call it when CRIU has inherited the descriptors.
  void CloseOurEnds();
  // Waits until all bytes that CRIU has written are in memory. Call it when CRIU has written all
  // files. Returns kResourceExhausted if CRIU wrote more than `most_bytes`, and kAborted if a page
  // may be wrong because CRIU used it at the same time.
  Status Finish();
  // Stops the threads. CRIU gets EPIPE from now on. Safe to call more than once.
  void Stop();

  // The error of a thread, which CRIU sees as a closed pipe. Safe to call from any thread.
  Status status() const;
  // After Finish: the files that are not empty, and their size.
  std::vector<StreamedFile> files() const;
  uint64_t bytes() const;

  // Removes the links from CRIU's folder. Creates the files that CRIU left empty. Call it when CRIU
  // has written all files. Needs no object, so that a child process can call it.
  static Status RemoveLinks(int folder_fd, const std::vector<StreamedFile>& files);
  // Returns files(), which a child process has been sent, with their content. Returns kInternal for
  // a file that is not in the memory.
  Result<std::vector<store::FileInMemory>> Content(const std::vector<StreamedFile>& files) const;
  // Frees the memory in all processes. Its content is zero afterwards.
  void Free();

 private:
  struct Pipe {
    UniqueFd read;
    UniqueFd write;
    uint64_t begin = 0;
    uint64_t bytes = 0;
    bool ended = false;  // CRIU has closed it and all bytes were read
  };
  PageStreams() = default;
  Status MakeLinks(int folder_fd, size_t files);
  void Receive();
  Result<bool> ReceivePiece(int scratch_read, int scratch_write);
  Result<Pipe*> AwaitData();
  Status CheckPages(uint64_t begin, uint64_t end) const;
  Result<uint64_t> Place(Pipe& pipe, uint64_t bytes);
  void FailWith(Error error);
  void Wake() const;

  char* memory_ = nullptr;
  uint64_t expected_bytes_ = 0;
  uint64_t most_bytes_ = 0;
  std::vector<Pipe> pipes_;
  UniqueFd wake_;  // an eventfd: Finish or Stop was called
  std::vector<Thread> threads_;
  // Held by the thread that waits for data and takes it out of a pipe.
  std::mutex taking_;
  mutable std::mutex mutex_;  // guards the members below and those of `pipes_` except descriptors
  uint64_t used_bytes_ = 0;
  Status status_;
  std::atomic<bool> stopping_{false};
};

}  // namespace stasis::checkpoint
