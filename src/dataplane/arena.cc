#include "dataplane/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <map>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "base/parallel.h"
#include "dataplane/arena_file.h"
#include "dataplane/prefault.h"
#include "process/control_group.h"

namespace stasis::dataplane {
namespace {

constexpr uint64_t kFileUnit = 2u << 20;  // a huge page
std::string Gib(uint64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1u << 30));
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The UUID becomes part of a file name and may come from another program.
bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= 47 && text.find('/') == std::string::npos &&
         text.find('.') == std::string::npos && text.find('\0') == std::string::npos;
}

std::string Besides(uint64_t keep_free) {
  return keep_free == 0 ? "" : fmt::format(" and {} for the driver and buffers", Gib(keep_free));
}

// `keep_free`: what must stay free in memory besides.
tl::unexpected<Error> NoRoom(const ArenaPlace& place, uint64_t needed, uint64_t free,
                             const MemoryRoom& keep_free) {
  if (place.in_memory()) {
    const process::MemoryLeft group = process::MemoryLeftInControlGroups({::getpid()});
    if (group.beyond_reserve() - std::min(group.beyond_reserve(), keep_free.groups_bytes) <
        needed) {
      return Fail(Code::kResourceExhausted,
                  fmt::format("{} of host memory are needed for the GPU's data{}, but this "
                              "command's control group has only {} left ({})",
                              Gib(needed), Besides(keep_free.groups_bytes),
                              Gib(group.beyond_reserve()), group.limit_file),
                  "run the command in a control group with a higher limit, free memory (`stasis "
                  "arena free`), or name a folder on disk with --spill");
    }
  }
  return Fail(Code::kResourceExhausted,
              fmt::format("{} of {} are needed for the GPU's data{}, but {} has only {} free",
                          Gib(needed), place.in_memory() ? "host memory" : "disk",
                          Besides(keep_free.machine_bytes), place.path, Gib(free)),
              place.in_memory()
                  ? "free memory (`stasis arena free`), or name a folder on disk with "
                    "--spill"
                  : "name another folder");
}

}  // namespace

Result<ArenaStore> ArenaStore::Open(const Paths& paths, ArenaOptions options) {
  ArenaStore store;
  STASIS_ASSIGN(store.hold_, HoldPlaces(paths));
  STASIS_ASSIGN(store.places_, OpenPlaces(paths, options));
  STASIS_ASSIGN(store.boot_id_, process::BootId());
  STASIS_ASSIGN(uint64_t pid_namespace, process::ReadNamespace({::getpid()}, "pid"));
  store.pid_namespace_ = static_cast<uint32_t>(pid_namespace);
  store.paths_ = paths;
  store.options_ = std::move(options);
  return store;
}

// Opens and locks the file. Also returns kNotFound if it was renamed between the two steps.
Result<Arena> ArenaStore::OpenFile(const std::string& path, bool in_memory) {
  Arena arena;
  STASIS_ASSIGN(arena.fd_, stasis::Open(path, O_RDWR | O_NOFOLLOW));
  struct flock lock = WholeFile();
  if (::fcntl(arena.fd_.get(), F_OFD_SETLK, &lock) != 0) {
    if (errno != EAGAIN && errno != EACCES) return FailErrno(errno, "lock " + path);
    return Fail(Code::kAborted, "another process uses the arena " + path);
  }
  struct stat mine, there;
  if (::fstat(arena.fd_.get(), &mine) != 0) return FailErrno(errno, "stat " + path);
  if (::lstat(path.c_str(), &there) != 0 || there.st_ino != mine.st_ino) {
    return Fail(Code::kNotFound, "the arena " + path + " was removed meanwhile");
  }
  arena.path_ = path;
  arena.capacity_bytes_ = static_cast<uint64_t>(mine.st_size);
  arena.in_memory_ = in_memory;
  return arena;
}

// Checks the user's limit for `more` additional bytes.
Status ArenaStore::CheckLimit(uint64_t more) {
  if (options_.most_bytes == 0) return {};
  uint64_t taken = 0;
  for (const ArenaPlace& place : places_) {
    if (!place.in_memory()) continue;
    STASIS_ASSIGN(auto names, ListDir(place.path));
    for (const std::string& name : names) {
      struct stat st;
      // The file may have been removed since the folder was listed.
      if (::lstat((place.path + "/" + name).c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
        taken += static_cast<uint64_t>(st.st_blocks) * 512;
      }
    }
  }
  if (more <= options_.most_bytes && taken <= options_.most_bytes - more) return {};
  return Fail(
      Code::kResourceExhausted,
      fmt::format("{} MiB more of host memory for GPU data would make {} MiB; your limit is "
                  "{} MiB (limits.arena)",
                  more >> 20, (taken + more) >> 20, options_.most_bytes >> 20),
      "resume or end suspended programs (`stasis arena ls` lists them), free unused memory "
      "with `stasis arena free`, or suspend to a disk with --spill");
}

uint64_t ArenaStore::FileBytes(uint64_t bytes) {
  return (std::max<uint64_t>(bytes, 1) + kFileUnit - 1) / kFileUnit * kFileUnit;
}

// Grows the file to at least `bytes`, fully allocated. The file size records how much is allocated,
// so it is set last.
Status ArenaStore::Allocate(Arena& arena, const ArenaPlace& place, uint64_t bytes) {
  bytes = FileBytes(bytes);
  if (bytes <= arena.capacity_bytes_) return {};
  const uint64_t more = bytes - arena.capacity_bytes_;
  if (place.in_memory()) STASIS_TRY(CheckLimit(more));
  const bool keeps = place.in_memory() && !options_.ignore_memory_check;
  const MemoryRoom keep_free = keeps ? options_.keep_free : MemoryRoom{};
  STASIS_ASSIGN(const uint64_t room, RoomIn(place, options_.ignore_memory_check, keep_free));
  auto no_room = [&]() -> Status {
    return NoRoom(place, more, RoomIn(place, options_.ignore_memory_check).value_or(room),
                  keep_free);
  };
  if (more > room) return no_room();
  if (TEMP_FAILURE_RETRY(::fallocate(arena.fd(), FALLOC_FL_KEEP_SIZE,
                                     static_cast<off_t>(arena.capacity_bytes_),
                                     static_cast<off_t>(more))) != 0) {
    const int error = errno;
    // Some network file systems cannot reserve space. A save that finds a full disk is undone.
    const bool unreserved = error == EOPNOTSUPP && !place.in_memory();
    if (error == ENOSPC || error == ENOMEM) return no_room();
    if (!unreserved) return FailErrno(error, "allocate " + arena.path_);
  }
  if (::ftruncate(arena.fd(), static_cast<off_t>(bytes)) != 0) {
    return FailErrno(errno, "allocate " + arena.path_);
  }
  arena.capacity_bytes_ = bytes;
  assert(arena.capacity_bytes_ % kFileUnit == 0);
  return {};
}

Result<Arena> ArenaStore::NewFile(const std::string& path, const ArenaPlace& place,
                                  uint64_t bytes) {
  Arena arena;
  STASIS_ASSIGN(arena.fd_, stasis::Open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW));
  arena.path_ = path;
  arena.in_memory_ = place.in_memory();
  struct flock lock = WholeFile();
  if (::fcntl(arena.fd(), F_OFD_SETLK, &lock) != 0) return FailErrno(errno, "lock " + path);
  if (auto allocated = Allocate(arena, place, bytes); !allocated) {
    ::unlink(path.c_str());
    return Fail(std::move(allocated.error()));
  }
  return arena;
}

// Takes the smallest free file that is large enough, else the largest.
Result<Arena> ArenaStore::TakeFree(const ArenaPlace& place, uid_t owner, uint64_t bytes) {
  std::optional<Arena> best;
  for (const std::string& name : NamesIn(place)) {
    if (OwnerOfFree(name) != owner) continue;
    auto file = OpenFile(place.path + "/" + name, place.in_memory());
    if (!file) continue;
    const uint64_t size = file->capacity_bytes_;
    const bool better =
        !best || (size >= bytes ? best->capacity_bytes_ < bytes || size < best->capacity_bytes_
                                : size > best->capacity_bytes_);
    if (better) best = std::move(*file);
  }
  if (!best) return Fail(Code::kNotFound, "there is no free arena");
  return std::move(*best);
}

namespace {

// Returns the size of an arena for these ranges.
Result<uint64_t> DataBytes(const std::vector<Range>& ranges) {
  STASIS_TRY(TotalBytes(ranges));
  const uint64_t bytes = UsedBytes(ranges);
  STASIS_TRY(CheckWithin(ranges, bytes));
  STASIS_TRY(CheckDisjoint(ranges));
  return bytes;
}

}  // namespace

// The record must stop saying "complete" before the first byte is overwritten.
Status ArenaStore::RemoveRecord(const Arena& arena) { return RemoveFile(RecordPath(arena.path_)); }

Status ArenaStore::Reshape(Arena& arena, std::vector<Range> ranges) {
  STASIS_ASSIGN(const uint64_t bytes, DataBytes(ranges));
  if (arena.record_.complete && arena.record_.hashes) {
    arena.known_ = {std::move(*arena.record_.hashes), arena.record_.ranges};
  }
  // The record on disk says this already.
  if (!arena.record_.complete && arena.record_.ranges == ranges) return {};
  arena.record_.hashes.reset();
  const std::string folder = FolderOf(arena.path_);
  auto place = std::find_if(places_.begin(), places_.end(),
                            [&](const ArenaPlace& p) { return p.path == folder; });
  if (place == places_.end())
    return Fail(Code::kInternal, arena.path_ + " is not in a folder for arenas");
  const uint64_t more = bytes - std::min(bytes, arena.capacity_bytes_);
  if (place->in_memory()) STASIS_TRY(CheckOwnLimit(more));
  ArenaRecord record = arena.record_;
  record.complete = false;
  record.data_bytes = bytes;
  record.ranges = std::move(ranges);
  arena.record_.complete = false;
  STASIS_TRY(Bounded(arena, [&]() -> Status {
    STASIS_TRY(RemoveRecord(arena));
    STASIS_TRY(MakingRoom(*place, [&] { return Allocate(arena, *place, bytes); }));
    return WriteFileDurably(RecordPath(arena.path_), Encode(record));
  }));
  // Again for the case that a child process has done it.
  if (more > 0) arena.capacity_bytes_ = FileBytes(bytes);
  if (place->in_memory()) own_bytes_ += more;
  arena.record_ = std::move(record);
  return {};
}

// The order of places in memory changes with the memory that is free in each, and so while files
// are made ready.
const ArenaPlace& ArenaStore::PlaceOf(const ArenaKey& key) const {
  if (!places_.front().in_memory()) return places_.front();
  for (const ArenaPlace& place : places_) {
    if (!place.in_memory()) continue;
    if (PathExists(KeptPath(place, key)) || PathExists(ReadyPath(place, key))) return place;
  }
  return places_.front();
}

// A file of the key in any other place holds old data and is discarded.
Result<Arena> ArenaStore::AcquireIn(const ArenaPlace& place, const ArenaKey& key, uid_t owner,
                                    std::vector<Range> ranges) {
  if (!IsName(key.gpu.value)) {
    return Fail(Code::kInvalidArgument, "this is not the UUID of a GPU");
  }
  STASIS_ASSIGN(const uint64_t bytes, DataBytes(ranges));

  ArenaRecord record;
  record.key = key;
  record.owner = owner;
  record.boot_id = boot_id_;
  record.pid_namespace = pid_namespace_;
  record.data_bytes = bytes;
  record.ranges = std::move(ranges);

  const std::string path = DataPath(place.path, key);
  for (const ArenaPlace& other : places_) {
    const std::string old = DataPath(other.path, key);
    if (old == path) continue;
    auto arena = OpenFile(old, other.in_memory());
    if (arena) STASIS_TRY(Remove(std::move(*arena)));
    if (!arena && arena.error().code != Code::kNotFound) return Fail(std::move(arena.error()));
  }

  auto arena = OpenFile(path, place.in_memory());
  if (!arena && arena.error().code != Code::kNotFound) return Fail(std::move(arena.error()));
  if (arena) LoadKnown(*arena, RecordPath(path), key, owner);
  if (!arena) {
    arena = OpenForSuspend(KeptPath(place, key), place, path);
    if (arena) LoadKnown(*arena, RecordPath(KeptPath(place, key)), key, owner);
  }
  // From here on, no record on disk describes the content until the arena is complete again. The
  // record of a kept file that is still locked describes that file.
  const bool kept_stays = !arena && arena.error().code == Code::kAborted;
  STASIS_TRY(RemoveFile(RecordPath(path)));
  if (!kept_stays) STASIS_TRY(RemoveFile(RecordPath(KeptPath(place, key))));
  if (!arena) arena = OpenForSuspend(ReadyPath(place, key), place, path);
  if (!arena) {
    arena = TakeFree(place, owner, bytes);
    if (arena && ::rename(arena->path_.c_str(), path.c_str()) != 0) {
      return FailErrno(errno, "rename " + arena->path_);
    }
    if (arena) arena->path_ = path;
  }
  auto allocate = [&]() -> Status {
    if (arena) return Allocate(*arena, place, bytes);
    auto fresh = NewFile(path, place, bytes);
    if (!fresh) return Fail(std::move(fresh.error()));
    arena = std::move(fresh);
    return {};
  };
  Status allocated = MakingRoom(place, allocate);
  if (!allocated) {
    if (arena) {
      arena->record_.owner = owner;  // the owner of the old data
      (void)Recycle(std::move(*arena));
    }
    return Fail(std::move(allocated.error()));
  }
  arena->record_ = std::move(record);
  STASIS_TRY(WriteRecord(*arena));
  return arena;
}

// Reads the hashes of the arena's content from a record. Ignores a record that is unreadable or
// belongs to another user.
void ArenaStore::LoadKnown(Arena& arena, const std::string& record_path, const ArenaKey& key,
                           uid_t owner) {
  auto text = ReadFile(record_path);
  if (!text) return;
  auto record = DecodeArenaRecord(*text);
  if (!record || !record->complete || !record->hashes || record->key != key ||
      record->owner != owner || record->boot_id != boot_id_ ||
      record->pid_namespace != pid_namespace_ || record->data_bytes > arena.capacity_bytes_) {
    return;
  }
  arena.known_ = {std::move(*record->hashes), std::move(record->ranges)};
}

// A hash belongs to a place in the file; the address in the program does not matter.
std::vector<Id128> Arena::TakeKnown(const Id128& key) {
  std::vector<Id128> hashes;
  auto known = std::exchange(known_, std::nullopt);
  if (!known || known->hashes.key != key) return hashes;
  struct Place {
    size_t first;
    uint64_t bytes;
  };
  std::map<uint64_t, Place> places;
  size_t first = 0;
  for (const Range& range : known->ranges) {
    if (range.stored_bytes == range.size_bytes) {
      places[range.arena_offset] = {first, range.size_bytes};
    }
    first += BlockCount(range);
  }
  hashes.resize(BlockCount(record_.ranges));
  size_t at = 0;
  for (const Range& range : record_.ranges) {
    auto place = places.find(range.arena_offset);
    if (place != places.end() && place->second.bytes == range.size_bytes) {
      assert(place->second.first + BlockCount(range) <= known->hashes.blocks.size());
      std::copy_n(known->hashes.blocks.begin() + static_cast<ptrdiff_t>(place->second.first),
                  BlockCount(range), hashes.begin() + static_cast<ptrdiff_t>(at));
    }
    at += BlockCount(range);
  }
  return hashes;
}

Status ArenaStore::WriteRecord(const Arena& arena) {
  assert(arena.record_.data_bytes <= arena.capacity_bytes_);
  assert(!arena.record_.hashes || arena.record_.complete);
  return WriteFileDurably(RecordPath(arena.path_), Encode(arena.record_));
}

Status ArenaStore::Rekey(Arena& arena, const process::ProcessId& process) {
  STASIS_TRY(RemoveRecord(arena));
  ArenaKey key{process, arena.record_.key.gpu};
  const std::string folder = FolderOf(arena.path_);
  const std::string path = DataPath(folder, key);
  if (::renameat2(AT_FDCWD, arena.path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
    return FailErrno(errno, "rename " + arena.path_);
  }
  arena.path_ = path;
  arena.record_.key = std::move(key);
  return WriteRecord(arena);
}

Status ArenaStore::Complete(Arena& arena, const std::optional<Id128>& checksum,
                            std::optional<ArenaHashes> hashes) {
  if (hashes && hashes->blocks.size() != BlockCount(arena.record_.ranges)) {
    return Fail(Code::kInternal,
                "the number of hashes of an arena differs from the number of its blocks");
  }
  arena.record_.complete = true;
  arena.record_.has_checksum = checksum.has_value();
  arena.record_.checksum = checksum.value_or(Id128{});
  arena.record_.hashes = std::move(hashes);
  arena.known_.reset();
  return Bounded(arena, [&]() -> Status {
    if (!arena.in_memory_ && ::fdatasync(arena.fd()) != 0) {
      return FailErrno(errno, "sync " + arena.path_);
    }
    return WriteRecord(arena);
  });
}

Result<Arena> ArenaStore::Find(const ArenaKey& key) {
  for (const ArenaPlace& place : places_) {
    const std::string path = DataPath(place.path, key);
    auto arena = OpenFile(path, place.in_memory());
    if (!arena && arena.error().code == Code::kNotFound) continue;
    if (!arena) return Fail(std::move(arena.error()));
    auto text = ReadFile(RecordPath(path), 64u << 20);
    if (!text && text.error().code == Code::kNotFound) {
      // The writer was killed between taking the file and writing the record, so the file has no
      // data.
      arena->record_.key = key;
      return arena;
    }
    if (!text) return Fail(std::move(text.error()));
    auto record = Annotate(DecodeArenaRecord(*text), "read " + RecordPath(path));
    if (!record) return Fail(std::move(record.error()));
    if (record->key != key || record->data_bytes > arena->capacity_bytes_) {
      return Fail(Code::kDataLoss, path + " does not match its record");
    }
    // Pids and start times of another boot are meaningless.
    if (record->boot_id != boot_id_) continue;
    arena->record_ = std::move(*record);
    return arena;
  }
  return Fail(Code::kNotFound, fmt::format("there is no GPU data of process {} on {}",
                                           key.process.pid.value, key.gpu.value));
}

Status ArenaStore::Recycle(Arena arena) {
  const ArenaPlace place{ArenaPlace::Kind::kExplicit, FolderOf(arena.path_)};
  if (!arena.in_memory_) return Remove(std::move(arena));
  // If less host memory is free than the arena occupies, do not keep the file.
  if (auto room = RoomIn(place, false); room && *room < arena.capacity_bytes_) {
    return Remove(std::move(arena));
  }
  STASIS_TRY(RemoveRecord(arena));
  for (uint64_t number = 0;; ++number) {
    const std::string path = FreePath(place, arena.record_.owner, number);
    if (::renameat2(AT_FDCWD, arena.path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) {
      return {};
    }
    if (errno != EEXIST) return FailErrno(errno, "rename " + arena.path_);
  }
}

Status ArenaStore::KeepData(Arena arena) {
  const bool known_only = arena.known_.has_value();
  if (known_only) {
    // Nothing was written since the content became known.
    Arena::Known known = *std::exchange(arena.known_, std::nullopt);
    arena.record_.hashes = std::move(known.hashes);
    arena.record_.ranges = std::move(known.ranges);
    arena.record_.has_checksum = false;
    arena.record_.complete = true;
    STASIS_ASSIGN(arena.record_.data_bytes, DataBytes(arena.record_.ranges));
  }
  const ArenaPlace place{ArenaPlace::Kind::kExplicit, FolderOf(arena.path_)};
  auto room = RoomIn(place, false);
  if (!arena.record_.complete || !arena.record_.hashes || !arena.in_memory_ || !room ||
      *room < arena.capacity_bytes_) {
    return Recycle(std::move(arena));
  }
  // Rename the data first: from then on it cannot be mistaken for the only copy, whatever happens
  // to its record.
  const std::string kept = KeptPath(place, arena.key());
  STASIS_TRY(RemoveFile(RecordPath(kept)));
  if (::rename(arena.path_.c_str(), kept.c_str()) != 0) {
    return FailErrno(errno, "rename " + arena.path_);
  }
  if (known_only) {
    STASIS_TRY(RemoveRecord(arena));
    arena.path_ = kept;
    return WriteRecord(arena);
  }
  if (::rename(RecordPath(arena.path_).c_str(), RecordPath(kept).c_str()) != 0) {
    return FailErrno(errno, "rename " + RecordPath(arena.path_));
  }
  return {};
}

Status ArenaStore::Remove(Arena arena) {
  return Bounded(arena, [&]() -> Status {
    STASIS_TRY(RemoveRecord(arena));
    STASIS_TRY(RemoveFile(arena.path_));
    if (!arena.in_memory_) RemoveEmptyOverflow(paths_, FolderOf(arena.path_));
    return {};
  });
}

Result<Id128> DataChecksum(int fd, uint64_t bytes) {
  constexpr uint64_t kPart = 64u << 20;
  if (bytes == 0) return Checksum({});
  STASIS_ASSIGN(Mapping mapping, Mapping::Map(fd, bytes));
  std::string parts((bytes + kPart - 1) / kPart * Id128::kBytes, '\0');
  auto checksum = [&](size_t i) -> Status {
    const uint64_t at = i * kPart;
    auto id = Checksum({mapping.data() + at, std::min(kPart, bytes - at)});
    std::copy(id.bytes.begin(), id.bytes.end(), parts.begin() + static_cast<ptrdiff_t>(i * 16));
    return {};
  };
  const std::atomic<uint64_t> not_reported = 0;
  STASIS_TRY(ForEachWithProgress(parts.size() / Id128::kBytes, checksum, not_reported, 0, nullptr));
  return Checksum(parts);
}

}  // namespace stasis::dataplane
