// The arena: named host memory that holds the GPU data of a suspended program. There is one file
// for each (process, GPU), allocated before use, with a record beside it:
//
//   PLACE/PID-START-UUID.data      the bytes
//   PLACE/PID-START-UUID.record    arena_record.h; written as incomplete first, as complete last
//   PLACE/free-UID-N.data          memory for reuse, without data; the last data was user UID's
//   PLACE/kept-PID-START-UUID.data and .record:
//                                  data that is back on its GPU, kept so that the next suspend of
//                                  the process copies only changed blocks. It is never the only
//                                  copy, so its memory may be reclaimed at any time
//   PLACE/ready-PID-START-UUID.data
//                                  memory without data, made ready for the next suspend of the
//                                  process
//
// A file never shrinks and its pages are never replaced, because a mover may have them registered.
// Work on an arena requires its lock, which belongs to the open data file: a mover that received
// the descriptor holds the lock too. A locked arena is never swept.
//
// An Arena must be used by one thread at a time. Any number of stores may use the same places.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/paths.h"
#include "base/result.h"
#include "dataplane/arena_place.h"
#include "dataplane/arena_record.h"

namespace stasis::dataplane {

class Arena {
 public:
  const ArenaKey& key() const { return record_.key; }
  const ArenaRecord& record() const { return record_; }
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  bool in_memory() const { return in_memory_; }

  // Returns, for each block of record().ranges, the hash of the bytes now at its place, or zero if
  // unknown; empty if none is known. Also forgets the hashes, because the caller is about to
  // overwrite the data.
  std::vector<Id128> TakeKnown(const Id128& key);
  // Records the hashes of the bytes that the file has now, for record().ranges, which must be fully
  // stored. A zero hash means unknown.
  void NoteKnown(ArenaHashes hashes) { known_ = {std::move(hashes), record_.ranges}; }
  // Returns true if the hashes of the bytes in the file are known.
  bool knows_data() const { return known_.has_value(); }

 private:
  friend class ArenaStore;
  // The hashes of the file's content. While an arena is in use, no record on disk has them.
  struct Known {
    ArenaHashes hashes;
    std::vector<Range> ranges;
  };

  ArenaRecord record_;
  std::optional<Known> known_;
  std::string path_;
  UniqueFd fd_;
  uint64_t capacity_bytes_ = 0;
  bool in_memory_ = true;
};

struct ArenaInfo {
  std::string path;
  uint64_t capacity_bytes = 0;
  uint64_t allocated_bytes = 0;  // less than the capacity if Stasis did not make the file
  bool in_memory = true;
  bool in_use = false;                // its lock is held
  std::optional<ArenaRecord> record;  // absent if free or unreadable
  bool kept = false;                  // its data is back on the GPU
  bool ready = false;                 // without data, for the next suspend of its process
  std::optional<ArenaKey> key;        // from the name; absent if free
  std::string damage;                 // why the record is unreadable
};

// Returns "data", "incomplete", "kept", "ready", "free", "in use" or "damaged".
std::string_view StateName(const ArenaInfo& arena);

class ArenaStore {
 public:
  // Opens the places for arenas (arena_place.h) and keeps RUN/arena mounted while the store exists.
  // Returns the errors of HoldPlaces and OpenPlaces.
  static Result<ArenaStore> Open(const Paths& paths, ArenaOptions options = {});

  // Returns memory for `ranges` (laid out by LayOut()), fully allocated. Uses the key's own file,
  // the one made ready for it, a free one, or a new one; discards older data of the key. Never uses
  // a free file of another `owner`, since it still has that user's data. Memory that does not
  // suffice is replaced by a file in ArenaOptions::overflow_dir, if that is set. kResourceExhausted
  // names the needed and the free size; kAborted means that the arena is locked. After an error
  // nothing has changed, except that free files may be gone.
  Result<Arena> Acquire(const ArenaKey& key, uid_t owner, const std::vector<Range>& ranges);

  // Changes the ranges of an arena and grows it if needed, because sizes estimated before a program
  // is stopped may be wrong. The arena is incomplete afterwards. A mover must attach it again if it
  // has grown. After an error its size is unchanged, and it is incomplete.
  Status Reshape(Arena& arena, std::vector<Range> ranges);

  // Assigns the data to another process. Used for data that was loaded before its process existed.
  Status Rekey(Arena& arena, const process::ProcessId& process);

  // Marks the arena as complete, so that its data survives this process. Syncs the data first if it
  // is on disk. `hashes` are those of the blocks, if known; all-zero blocks need not be stored.
  Status Complete(Arena& arena, const std::optional<Id128>& checksum = {},
                  std::optional<ArenaHashes> hashes = {});

  // Returns the arena of the key with its record. Errors: kNotFound, kAborted (locked), kDataLoss
  // (damaged record). Check record().complete before using the data.
  Result<Arena> Find(const ArenaKey& key);

  // Discards the data. Keeps the memory for reuse if at least the same amount of host memory is
  // still free; otherwise frees it.
  Status Recycle(Arena arena);
  // Like Recycle, but keeps the data for comparison by the next suspend. Does so only if the data
  // is complete or unchanged since it was kept, has hashes, and the same amount of host memory is
  // still free.
  Status KeepData(Arena arena);
  Status Remove(Arena arena);

  // Lists all arenas, including free files, for `arena ls`.
  Result<std::vector<ArenaInfo>> List();
  // Creates one free file of at least `bytes` and touches its pages, for `arena reserve`.
  Status Reserve(uint64_t bytes);
  // Makes memory ready for the next suspend of a running process: grows its kept or ready file, a
  // free one of `owner`, or a new one, to `bytes`, and touches the new pages. Works in small steps
  // with one thread; between two steps another process may use the file, and the rest is then not
  // done. Ends early when `go_on` returns false. Does nothing while the process is suspended, or if
  // arenas are on disk. Returns the size of the file, 0 if there is none. kResourceExhausted: the
  // memory or the limit does not suffice for all of it; what was made ready stays.
  Result<uint64_t> MakeReady(const ArenaKey& key, uid_t owner, uint64_t bytes,
                             const std::function<bool()>& go_on);
  // Returns the kept or ready file of the key with its lock, to be attached to a mover. kNotFound
  // or kAborted if there is none, or if it is in use. Acquire waits for the lock: hold it only for
  // a short time, and release it for longer than kLockRetry before locking the file again.
  Result<Arena> OpenForNext(const ArenaKey& key);
  static constexpr std::chrono::milliseconds kLockRetry{5};
  // Frees the ready file of the key. Returns the number of freed bytes.
  uint64_t FreeReady(const ArenaKey& key);
  // Frees all files without data and all kept data, for `arena free`. With `keep_of_running`, only
  // files that belong to no process. Returns the number of freed bytes.
  Result<uint64_t> FreeUnused(bool keep_of_running);
  // Frees arenas of processes that have ended, and of other boots. Returns the number of freed
  // bytes. Keeps unreadable records and their data while the process lives, and everything from
  // other pid namespaces (a container with the same state directory).
  Result<uint64_t> Sweep();

  const std::vector<ArenaPlace>& places() const { return places_; }
  // Returns true if arenas of these sizes can all be in memory, once unused memory is freed.
  Result<bool> FitInMemory(const std::vector<uint64_t>& sizes);
  // Changes ArenaOptions::keep_free.
  void KeepFree(const MemoryRoom& keep_free) { options_.keep_free = keep_free; }
  // Returns why arenas were created in files of the overflow folder; empty if none was.
  const std::string& why_overflow() const { return why_overflow_; }

 private:
  Result<Arena> OpenFile(const std::string& path, bool in_memory);
  Result<Arena> NewFile(const std::string& path, const ArenaPlace& place, uint64_t bytes);
  Result<Arena> TakeFree(const ArenaPlace& place, uid_t owner, uint64_t bytes);
  Result<Arena> AcquireFirst(const ArenaKey& key, uid_t owner, const std::vector<Range>& ranges);
  Result<Arena> AcquireInOverflow(const ArenaKey& key, uid_t owner,
                                  const std::vector<Range>& ranges);
  // Checks ArenaOptions::most_own_bytes for `more` additional bytes.
  Status CheckOwnLimit(uint64_t more) const;
  // Runs `work`, in a child process with a deadline if the arena is on disk: a disk may not answer,
  // while the program waits. Changes of memory by `work` are lost then.
  static Status Bounded(const Arena& arena, const std::function<Status()>& work);
  // Returns the place of the key's kept or ready file, or the place for new files.
  const ArenaPlace& PlaceOf(const ArenaKey& key) const;
  Result<Arena> AcquireIn(const ArenaPlace& place, const ArenaKey& key, uid_t owner,
                          std::vector<Range> ranges);
  Result<Arena> OpenForSuspend(const std::string& from, const ArenaPlace& place,
                               const std::string& path);
  struct ReadyStep;
  Result<ReadyStep> GrowReady(const ArenaPlace& place, const ArenaKey& key, uid_t owner,
                              uint64_t bytes);
  void LoadKnown(Arena& arena, const std::string& record_path, const ArenaKey& key, uid_t owner);
  Status CheckLimit(uint64_t more);
  // Returns the size of the file of an arena with so many bytes.
  static uint64_t FileBytes(uint64_t bytes);
  Status Allocate(Arena& arena, const ArenaPlace& place, uint64_t bytes);
  Status WriteRecord(const Arena& arena);
  Status RemoveRecord(const Arena& arena);
  static void SweepHalfRecords(const ArenaPlace& place);
  // Runs `allocate`. If space is short, frees kept memory and retries.
  Status MakingRoom(const ArenaPlace& place, const std::function<Status()>& allocate);
  uint64_t FreeUnusedIn(const ArenaPlace& place, bool keep_of_running);

  UniqueFd hold_;
  std::vector<ArenaPlace> places_;
  Paths paths_;
  ArenaOptions options_;
  uint64_t own_bytes_ = 0;  // in memory, acquired by this object
  std::string why_overflow_;
  std::string boot_id_;
  uint32_t pid_namespace_ = 0;
};

// Returns the checksum of the first `bytes` of a file: XXH3-128 over the XXH3-128 of each 64 MiB.
// Uses all processors.
Result<Id128> DataChecksum(int fd, uint64_t bytes);

}  // namespace stasis::dataplane
