// Arenas on disk: those that do not fit into memory, and writes to a disk that may not answer.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/bounded.h"
#include "dataplane/arena.h"
#include "dataplane/arena_file.h"
#include "dataplane/range.h"

namespace stasis::dataplane {
namespace {

// The mover has written and synced the data before, so only small writes are left.
constexpr std::chrono::seconds kAnswerTime{30};

}  // namespace

Status ArenaStore::Bounded(const Arena& arena, const std::function<Status()>& work) {
  if (arena.in_memory_) return work();
  auto ask = [&](const NoteStep& note) -> Result<std::string> {
    note("write to " + arena.path_);
    STASIS_TRY(work());
    return std::string();
  };
  BoundedOptions options;
  options.keep_fds = {arena.fd()};
  STASIS_TRY(AskBounded(ask, Deadline::In(kAnswerTime), options));
  return {};
}

Result<Arena> ArenaStore::Acquire(const ArenaKey& key, uid_t owner,
                                  const std::vector<Range>& ranges) {
  auto arena = AcquireFirst(key, owner, ranges);
  if (arena || arena.error().code != Code::kResourceExhausted || options_.overflow_dir.empty()) {
    return arena;
  }
  auto overflow = AcquireInOverflow(key, owner, ranges);
  if (overflow) {
    why_overflow_ = arena.error().message;
    return overflow;
  }
  if (overflow.error().code == Code::kAborted) return overflow;
  arena.error().message +=
      fmt::format("; it cannot go to files either: {}", overflow.error().ToString());
  if (!overflow.error().hint.empty()) arena.error().hint = overflow.error().hint;
  return arena;
}

Result<Arena> ArenaStore::AcquireFirst(const ArenaKey& key, uid_t owner,
                                       const std::vector<Range>& ranges) {
  const uint64_t bytes = UsedBytes(ranges);
  STASIS_TRY(CheckOwnLimit(bytes));
  const ArenaPlace& place = PlaceOf(key);
  auto arena = AcquireIn(place, key, owner, ranges);
  if (!arena && &place != &places_.front() && arena.error().code == Code::kResourceExhausted) {
    arena = AcquireIn(places_.front(), key, owner, ranges);
  }
  if (arena && arena->in_memory()) own_bytes_ += bytes;
  return arena;
}

Status ArenaStore::CheckOwnLimit(uint64_t more) const {
  const uint64_t most = options_.most_own_bytes;
  if (most == 0 || (more <= most && own_bytes_ <= most - more)) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("{} MiB of host memory are needed for the GPU's data, but --arena-limit "
                          "allows {} MiB",
                          (own_bytes_ + more) >> 20, most >> 20),
              "raise --arena-limit, or leave it out to use the memory that is free");
}

Result<bool> ArenaStore::FitInMemory(const std::vector<uint64_t>& sizes) {
  const ArenaPlace& front = places_.front();
  if (!front.in_memory()) return true;  // with --spill no arena is meant to be in memory
  uint64_t bytes = 0;
  for (const uint64_t size : sizes) bytes += FileBytes(size);
  uint64_t unused = 0;
  for (const ArenaPlace& place : places_) {
    if (!place.in_memory()) continue;
    for (const std::string& name : NamesIn(place)) {
      if (!OwnerOfFree(name) && !KeyOfKept(name) && !KeyOfReady(name)) continue;
      const std::string path = place.path + "/" + name;
      struct stat st;
      if (::lstat(path.c_str(), &st) != 0 || IsLocked(path)) continue;
      unused += static_cast<uint64_t>(st.st_blocks) * 512;
    }
  }
  const uint64_t more = bytes - std::min(bytes, unused);
  if (!CheckOwnLimit(bytes) || !CheckLimit(more)) return false;
  STASIS_ASSIGN(const uint64_t room,
                RoomIn(front, options_.ignore_memory_check, options_.keep_free));
  return more <= room;
}

Result<Arena> ArenaStore::AcquireInOverflow(const ArenaKey& key, uid_t owner,
                                            const std::vector<Range>& ranges) {
  // Another command may remove the folder while it is empty.
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    STASIS_ASSIGN(const ArenaPlace place, OpenOverflow(paths_, options_.overflow_dir));
    const bool is_new = std::none_of(places_.begin(), places_.end(),
                                     [&](const ArenaPlace& p) { return p.path == place.path; });
    if (is_new) {
      places_.push_back(place);
      (void)Sweep();  // files of an earlier boot, which no list of folders names any more
    }
    auto arena = AcquireIn(place, key, owner, ranges);
    if (arena) return arena;
    RemoveEmptyOverflow(paths_, place.path);
    if (arena.error().code != Code::kNotFound || attempt == kAttempts) return arena;
  }
}

}  // namespace stasis::dataplane
