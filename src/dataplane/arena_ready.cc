// Memory that is made ready for the next suspend of a running process, in the background.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "base/file.h"
#include "dataplane/arena.h"
#include "dataplane/arena_file.h"
#include "dataplane/prefault.h"

namespace stasis::dataplane {
namespace {

// Small enough that a suspend which needs the file at the same time hardly waits.
constexpr uint64_t kStepBytes = 64u << 20;
// How long a suspend waits for the end of such a step, or for a mover that registers a part of the
// file. Without the file it would need the memory twice.
constexpr std::chrono::seconds kLockTimeout{10};

bool IsInUse(const Result<Arena>& arena) { return !arena && arena.error().code == Code::kAborted; }

// Opens the file again, because a mapping of the arena's own descriptor would keep its lock.
Result<UniqueFd> OpenAgain(const Arena& arena) {
  return Open(fmt::format("/proc/self/fd/{}", arena.fd()), O_RDWR);
}

Status Touch(int fd, uint64_t from, uint64_t to) {
  STASIS_ASSIGN(Mapping mapping, Mapping::Map(fd, to));
  Prefaulter prefaulter(mapping.data(), {{from, to - from}}, 1);
  return prefaulter.Wait(0);
}

}  // namespace

// Opens the kept or ready file `from` and renames it to `path`, which marks it as in use. Waits
// while it is made larger or registered. Returns kNotFound if there is none.
Result<Arena> ArenaStore::OpenForSuspend(const std::string& from, const ArenaPlace& place,
                                         const std::string& path) {
  auto arena = OpenFile(from, place.in_memory());
  for (const Deadline deadline = Deadline::In(kLockTimeout);
       IsInUse(arena) && !deadline.passed();) {
    std::this_thread::sleep_for(kLockRetry);
    arena = OpenFile(from, place.in_memory());
  }
  if (!arena) return arena;
  if (::rename(from.c_str(), path.c_str()) != 0) return FailErrno(errno, "rename " + from);
  arena->path_ = path;
  return arena;
}

Result<Arena> ArenaStore::OpenForNext(const ArenaKey& key) {
  const ArenaPlace& place = PlaceOf(key);
  auto arena = OpenFile(KeptPath(place, key), place.in_memory());
  if (!arena && arena.error().code == Code::kNotFound) {
    arena = OpenFile(ReadyPath(place, key), place.in_memory());
  }
  if (arena) arena->record_.key = key;
  return arena;
}

struct ArenaStore::ReadyStep {
  Arena arena;
  uint64_t touched_bytes;  // at the beginning of the file
};

// Grows the file by one step. Returns kNotFound if the process is suspended.
Result<ArenaStore::ReadyStep> ArenaStore::GrowReady(const ArenaPlace& place, const ArenaKey& key,
                                                    uid_t owner, uint64_t bytes) {
  for (const ArenaPlace& any : places_) {
    if (PathExists(DataPath(any.path, key))) {
      return Fail(Code::kNotFound, "the process is suspended");
    }
  }
  auto arena = OpenForNext(key);
  if (arena) {
    const uint64_t before = arena->capacity_bytes_;
    if (before < bytes) STASIS_TRY(Allocate(*arena, place, std::min(bytes, before + kStepBytes)));
    return ReadyStep{std::move(*arena), before};
  }
  if (arena.error().code != Code::kNotFound) return Fail(std::move(arena.error()));
  // A suspend may have renamed the file since the check above.
  if (PathExists(DataPath(place.path, key))) return Fail(std::move(arena.error()));
  const std::string path = ReadyPath(place, key);
  arena = TakeFree(place, owner, bytes);
  if (!arena) {
    STASIS_ASSIGN(Arena fresh, NewFile(path, place, std::min(bytes, kStepBytes)));
    return ReadyStep{std::move(fresh), 0};
  }
  if (::renameat2(AT_FDCWD, arena->path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
    return FailErrno(errno, "rename " + arena->path_);
  }
  arena->path_ = path;
  const uint64_t before = arena->capacity_bytes_;
  return ReadyStep{std::move(*arena), before};
}

Result<uint64_t> ArenaStore::MakeReady(const ArenaKey& key, uid_t owner, uint64_t bytes,
                                       const std::function<bool()>& go_on) {
  const ArenaPlace& place = PlaceOf(key);
  if (!place.in_memory()) return 0;
  for (uint64_t ready = 0;;) {
    UniqueFd file;
    uint64_t touched = 0;
    {
      auto step = GrowReady(place, key, owner, bytes);
      if (!step) {
        const Code code = step.error().code;
        if (code == Code::kNotFound || code == Code::kAborted) return ready;
        return Fail(std::move(step.error()));
      }
      ready = step->arena.capacity_bytes();
      touched = step->touched_bytes;
      STASIS_ASSIGN(file, OpenAgain(step->arena));
    }  // without the lock from here on
    if (ready > touched) STASIS_TRY(Touch(file.get(), touched, ready));
    if (ready >= bytes || !go_on()) return ready;
  }
}

uint64_t ArenaStore::FreeReady(const ArenaKey& key) {
  uint64_t bytes = 0;
  for (const ArenaPlace& place : places_) {
    auto arena = OpenFile(ReadyPath(place, key), place.in_memory());
    if (!arena) continue;
    const uint64_t size = arena->capacity_bytes_;
    if (Remove(std::move(*arena))) bytes += size;
  }
  return bytes;
}

}  // namespace stasis::dataplane
