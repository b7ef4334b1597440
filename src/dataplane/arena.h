// The arena: host memory with a name, in which the GPU data of a suspended program lies. One file
// for each (process, GPU), allocated before it is used, with a record beside it once it is
// complete:
//
//   PLACE/PID-START-UUID.data      the bytes
//   PLACE/PID-START-UUID.record    arena_record.h; incomplete at first, complete last
//   PLACE/free-UID-N.data          memory without data, kept for the next; UID's data was in it
//   PLACE/kept-PID-START-UUID.data and .record: data that is back on its GPU, kept because the next
//                                  suspend of the same process copies only what differs from it.
//                                  Nobody's only copy: whoever needs the memory takes it
//
// A file never shrinks and its pages are never exchanged: a mover may have it registered. Who works
// on one holds its lock (on the open data file, so a mover that was sent it holds it too), so it is
// never swept from under anybody.
//
// Threads: an Arena belongs to one at a time; any number of stores may work on the same places.
#pragma once

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

  // By block of record().ranges, the name of the bytes that are in its place now; zero where that
  // is not known. Empty when nothing is. Whoever asks is about to write: it is forgotten with that.
  std::vector<image::Id128> TakeKnown(const image::Id128& key);
  // It holds what it held when it was acquired, and that has names.
  bool knows_data() const { return known_.has_value(); }

 private:
  friend class ArenaStore;
  // What is known of the bytes in the file, which no record on disk says while this one works on
  // it.
  struct Known {
    ArenaNames names;
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
  bool in_memory = true;
  bool in_use = false;                // somebody holds its lock
  std::optional<ArenaRecord> record;  // absent: free, or its record cannot be read
  bool kept = false;                  // its data is back on the GPU
  std::string damage;                 // why it cannot
};

// "data", "incomplete", "kept", "free", "in use" or "damaged".
std::string_view StateName(const ArenaInfo& arena);

class ArenaStore {
 public:
  static Result<ArenaStore> Open(const Paths& paths, ArenaOptions options = {});

  // Memory for `ranges` (laid out by LayOut()), allocated to the last byte. The key's own file, a
  // free one, or a new one; what was recorded for the key before is gone. Never another user's
  // data: a free file of another `owner` is not taken.
  // kResourceExhausted names what is needed and what is free, and nothing has changed then but
  // what free files held; kAborted when somebody works on it.
  Result<Arena> Acquire(const ArenaKey& key, uid_t owner, std::vector<Range> ranges);

  // The same memory for other ranges, grown where they need it: what is asked for before a program
  // stands still is an estimate. It is incomplete afterwards; a mover must attach it anew when it
  // has grown. After a failure the arena is as it was, but incomplete.
  Status Reshape(Arena& arena, std::vector<Range> ranges);

  // It belongs to that process from here on: of data that was there before the process was.
  Status Rekey(Arena& arena, const process::ProcessId& process);

  // Says that all data is in it: survives us from here on. On disk it is synced first.
  // With the names of its blocks, if they are known: one that is all zero need not be in it.
  Status Complete(Arena& arena, const std::optional<image::Id128>& checksum = {},
                  std::optional<ArenaNames> names = {});

  // The arena of the key, with its record. kNotFound, kAborted (locked), kDataLoss (its record is
  // damaged). Look at record().complete before using the data.
  Result<Arena> Find(const ArenaKey& key);

  // The data is not needed any more. Keeps the memory for the next one as long as there is at least
  // as much beside it, else gives it back.
  Status Recycle(Arena arena);
  // The same, but the data stays, for the next suspend to compare with, if it is complete or as it
  // was kept before, its blocks have names, and as much memory is left.
  Status KeepData(Arena arena);
  Status Remove(Arena arena);

  // `arena ls`: all, free ones too.
  Result<std::vector<ArenaInfo>> List();
  // `arena reserve`: one free file of at least that size, touched by all processors.
  Status Reserve(uint64_t bytes);
  // `arena free`: gives back all memory without data, or with data that was kept; how much that
  // was.
  Result<uint64_t> FreeUnused();
  // Gives back what belongs to processes that have ended or to another boot; how much that was.
  // Records that cannot be read stay, with their data, while their process lives; and so does what
  // another pid namespace (a container with the same state folder) has there.
  Result<uint64_t> Sweep();

  const std::vector<ArenaPlace>& places() const { return places_; }

 private:
  Result<Arena> OpenFile(const std::string& path, bool in_memory);
  Result<Arena> NewFile(const std::string& path, const ArenaPlace& place, uint64_t bytes);
  Result<Arena> TakeFree(const ArenaPlace& place, uid_t owner, uint64_t bytes);
  Result<Arena> OpenKept(const ArenaPlace& place, const ArenaKey& key, const std::string& path);
  void Learn(Arena& arena, const std::string& record_path, const ArenaKey& key, uid_t owner);
  Status CheckLimit(uint64_t more);
  Status Allocate(Arena& arena, const ArenaPlace& place, uint64_t bytes);
  Status WriteRecord(const Arena& arena);
  Status Forget(const Arena& arena);
  static void SweepHalfRecords(const ArenaPlace& place);
  // With what is kept for the next one given back, when there is no room otherwise.
  Status MakingRoom(const ArenaPlace& place, const std::function<Status()>& allocate);
  uint64_t FreeUnusedIn(const ArenaPlace& place);

  std::vector<ArenaPlace> places_;
  ArenaOptions options_;
  std::string boot_id_;
  uint32_t pid_namespace_ = 0;
};

// Over the first `bytes` of a file, by all processors: XXH3-128 over the XXH3-128 of each 64 MiB.
Result<image::Id128> DataChecksum(int fd, uint64_t bytes);

}  // namespace stasis::dataplane
