// Listing and cleanup of arena places: free memory, and data of processes that have ended.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>

#include "base/deadline.h"
#include "base/file.h"
#include "base/parallel.h"
#include "dataplane/arena.h"
#include "dataplane/arena_file.h"
#include "dataplane/prefault.h"

namespace stasis::dataplane {
namespace {

// Time limit for a mover to unregister arenas, which takes 0.7 s for 39 GiB on an H200.
constexpr std::chrono::seconds kUnregisterTimeout{5};
constexpr std::chrono::milliseconds kRetryInterval{10};

// A file of another boot that was written since this machine has started is in use by another
// machine, which shares the folder and has the same name and id.
bool WrittenInThisBoot(const std::string& path) {
  struct stat st;
  struct timespec now, up;
  if (::lstat(path.c_str(), &st) != 0) return true;
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::clock_gettime(CLOCK_BOOTTIME, &up);
  return st.st_mtim.tv_sec >= now.tv_sec - up.tv_sec;
}

}  // namespace

std::string_view StateName(const ArenaInfo& arena) {
  if (!arena.damage.empty()) return "damaged";
  if (arena.in_use) return "in use";
  if (arena.ready) return "ready";
  if (!arena.record) return "free";
  if (arena.kept) return "kept";
  return arena.record->complete ? "data" : "incomplete";
}

Result<std::vector<ArenaInfo>> ArenaStore::List() {
  std::vector<ArenaInfo> list;
  for (const ArenaPlace& place : places_) {
    for (const std::string& name : NamesIn(place)) {
      if (!name.ends_with(kData)) continue;
      ArenaInfo info;
      info.path = place.path + "/" + name;
      info.in_memory = place.in_memory();
      struct stat st;
      if (::lstat(info.path.c_str(), &st) != 0) continue;
      info.capacity_bytes = static_cast<uint64_t>(st.st_size);
      info.allocated_bytes = static_cast<uint64_t>(st.st_blocks) * 512;
      info.in_use = IsLocked(info.path);
      info.kept = KeyOfKept(name).has_value();
      info.ready = KeyOfReady(name).has_value();
      info.key = info.kept ? KeyOfKept(name) : info.ready ? KeyOfReady(name) : KeyOf(name);
      if (info.key && !info.ready) {
        auto text = ReadFile(RecordPath(info.path));
        auto record = text ? DecodeArenaRecord(*text) : Fail(std::move(text.error()));
        if (record) info.record = std::move(*record);
        if (!record) info.damage = record.error().ToString();
      }
      list.push_back(std::move(info));
    }
  }
  return list;
}

Status ArenaStore::Reserve(uint64_t bytes) {
  const ArenaPlace& place = places_.front();
  for (uint64_t number = 0;; ++number) {
    const std::string path = FreePath(place, ::geteuid(), number);
    auto arena = NewFile(path, place, bytes);
    if (!arena && arena.error().raw == EEXIST) continue;
    if (!arena) return Fail(std::move(arena.error()));
    if (!place.in_memory()) return {};
    STASIS_ASSIGN(Mapping mapping, Mapping::Map(arena->fd(), arena->capacity_bytes_));
    Prefaulter prefaulter(mapping.data(), {{0, arena->capacity_bytes_}}, ProcessorCount());
    return prefaulter.Wait(0);
  }
}

// Freed files release their memory with a delay, because a resident mover unregisters them only
// after their names are removed.
Status ArenaStore::MakingRoom(const ArenaPlace& place, const std::function<Status()>& allocate) {
  const auto no_room = [](const Status& status) {
    return !status && status.error().code == Code::kResourceExhausted;
  };
  Status allocated = allocate();
  if (!no_room(allocated)) return allocated;
  uint64_t freed = 0;
  for (const ArenaPlace& any : places_) {
    // The limits on memory count all places in memory.
    const bool counts = any.path == place.path || (any.in_memory() && place.in_memory());
    if (counts) freed += FreeUnusedIn(any, /*keep_of_running=*/false);
  }
  if (freed == 0) return allocated;
  allocated = allocate();
  for (const Deadline deadline = Deadline::In(kUnregisterTimeout);
       no_room(allocated) && !deadline.passed();) {
    std::this_thread::sleep_for(kRetryInterval);
    allocated = allocate();
  }
  return allocated;
}

uint64_t ArenaStore::FreeUnusedIn(const ArenaPlace& place, bool keep_of_running) {
  uint64_t bytes = 0;
  for (const std::string& name : NamesIn(place)) {
    const bool of_process = KeyOfKept(name) || KeyOfReady(name);
    if (!OwnerOfFree(name) && (keep_of_running || !of_process)) continue;
    auto arena = OpenFile(place.path + "/" + name, place.in_memory());
    if (!arena) continue;
    const uint64_t size = arena->capacity_bytes_;
    if (Remove(std::move(*arena))) bytes += size;
  }
  return bytes;
}

Result<uint64_t> ArenaStore::FreeUnused(bool keep_of_running) {
  uint64_t bytes = 0;
  for (const ArenaPlace& place : places_) bytes += FreeUnusedIn(place, keep_of_running);
  return bytes;
}

// Removes records left half-written by a killed process. While the data file is locked, a writer
// may be active.
void ArenaStore::SweepHalfRecords(const ArenaPlace& place) {
  auto names = ListDir(place.path);
  if (!names) return;
  for (const std::string& name : *names) {
    const size_t stem = name.find(std::string(kRecord) + ".");
    if (stem == std::string::npos) continue;
    const std::string data = place.path + "/" + name.substr(0, stem) + std::string(kData);
    if (!PathExists(data)) ::unlink((place.path + "/" + name).c_str());
  }
}

Result<uint64_t> ArenaStore::Sweep() {
  uint64_t bytes = 0;
  for (const ArenaPlace& place : places_) {
    for (const std::string& name : NamesIn(place)) {
      auto key = KeyOf(name);
      if (!key) key = KeyOfKept(name);
      if (!key) key = KeyOfReady(name);
      if (!key) continue;
      const std::string path = place.path + "/" + name;
      auto text = ReadFile(RecordPath(path));
      auto record = text ? DecodeArenaRecord(*text) : Fail(std::move(text.error()));
      const bool other_boot = record && record->boot_id != boot_id_;
      if (other_boot && IsOverflow(place.path) && WrittenInThisBoot(path)) continue;
      // The pids of another pid namespace are meaningless here.
      const bool foreign = record && record->pid_namespace != pid_namespace_;
      if (!other_boot && (foreign || process::IsAlive(key->process))) continue;
      auto arena = OpenFile(path, place.in_memory());
      if (!arena) continue;  // in use; its user will clean up
      const uint64_t size = arena->capacity_bytes_;
      STASIS_TRY(Remove(std::move(*arena)));
      bytes += size;
    }
    SweepHalfRecords(place);
  }
  return bytes;
}

}  // namespace stasis::dataplane
