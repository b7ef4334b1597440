#include "store/pack_linker.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <mutex>

#include "base/file.h"
#include "store/clock.h"
#include "store/image_folder.h"
#include "store/unit_jobs.h"

namespace stasis::store {

namespace {

// A pack is linked only if the image needs at least this fraction of its space on the disk. A link
// keeps the whole pack on the disk until the next gc, and permanently if the file system cannot
// punch holes. Without a link, less than this fraction of the pack is written again.
constexpr uint64_t kLeastUse = 8;  // one eighth

}  // namespace

Status PackLinker::Link(std::vector<NeededUnits>& needed, uint64_t looked_bytes) {
  places_.resize(needed.size());
  // Each linked pack is kept open, because it is locked.
  const size_t most = BoundedByOpenFiles(options_.max_linked_packs);
  std::vector<std::pair<uint64_t, uint32_t>> most_needed;
  for (uint32_t i = 0; i < needed.size(); ++i) {
    if (!needed[i].numbers.empty()) most_needed.emplace_back(needed[i].bytes, i);
  }
  std::sort(most_needed.begin(), most_needed.end(), std::greater<>());
  for (const auto& [bytes, index] : most_needed) {
    if (packs_.size() >= most || bytes * kLeastUse < earlier_.pack(index).occupied_bytes) continue;
    Pack linked;
    STASIS_ASSIGN(const bool is_linked, TryLink(index, needed[index], linked));
    if (!is_linked) continue;
    places_[index] = static_cast<uint32_t>(packs_.size());
    packs_.push_back(std::move(linked));
    shared_bytes_ += bytes;
    if (options_.progress && !options_.progress(looked_bytes)) {
      return Fail(Code::kCancelled, "cancelled");
    }
  }
  return {};
}

// Links a pack and checks the needed units. Returns true and sets `linked` if the image can refer
// to them. Fails only with kCancelled.
Result<bool> PackLinker::TryLink(uint32_t index, NeededUnits& needed, Pack& linked) {
  const auto& pack = earlier_.pack(index);
  uint32_t image = *needed.images.begin();
  auto opened = writer_.LinkPack(earlier_.image(image).folder.get(), pack.pack, pack.file);
  if (!opened) {
    // All other errors mean that the pack no longer exists or that gc is working on it.
    if (CannotShare(opened.error()) && notes_.empty()) {
      notes_.push_back("a part of the memory is in an earlier image but was written again: " +
                       opened.error().ToString());
    }
    return false;
  }
  const PackReader reader(std::move(*opened), pack.pack.path(), pack.index);
  auto status = CheckReferences(pack, reader, needed, linked, image);
  if (status) return true;
  writer_.UnlinkPack(pack.pack);
  if (status.error().code == Code::kCancelled) return Fail(std::move(status).error());
  if (IsDamage(status.error())) {
    notes_.push_back(DamagedNote(earlier_.image(image), pack.pack, status.error()));
  }
  return false;
}

// Checks that the new image can use units that other images wrote. The pack's lock is held, so gc
// cannot run:
//  - The images that refer to the units must still exist. Then gc has not freed the units before
//    the pack was locked (docs/decisions/packs-are-shared-by-hard-links.md explains why).
//  - The units are read and compared with their checksums if that was not done recently, or if the
//    file may have changed since then. Reading a unit costs less than writing it, so a dump is
//    never slower than without sharing.
// The index was checked when it was read, and LinkPack has checked that the file is the same. On
// damage, sets `damaged` to the image that refers to the damaged unit.
Status PackLinker::CheckReferences(const EarlierUnits::EarlierPack& pack, const PackReader& reader,
                                   NeededUnits& needed, Pack& linked, uint32_t& damaged) {
  struct stat st;
  if (::fstat(reader.fd(), &st) != 0) return FailErrno(errno, "stat " + pack.pack.path());
  const int64_t now = UnixNow();
  int64_t checked = now;
  for (const auto& [image, when] : pack.checked_unix_ns) {
    if (!needed.images.contains(image)) continue;
    if (!earlier_.IsStillThere(image)) return Fail(Code::kAborted, "its image was deleted");
    checked = std::min(checked, when);
  }
  auto& numbers = needed.numbers;
  std::sort(numbers.begin(), numbers.end());
  UnitJobs jobs({&reader});
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    jobs.Add(0, numbers[i], static_cast<uint32_t>(end - i));
    i = end;
  }
  jobs.Plan(UnitJobs::Order::kPacks);
  const UnitJobs::Use used = jobs.Used()[0];
  linked = pack.pack;
  linked.linked = true;
  linked.used_units = used.units;
  linked.used_bytes = used.stored_bytes;
  linked.checked_unix_ns = checked;
  const bool must_read =
      now - checked > options_.trust_ns || Ns(st.st_mtim) > checked || jobs.AnyIsHole(0);
  if (!must_read && used.stored_bytes > check_budget_) return {};
  check_budget_ -= std::min(check_budget_, used.stored_bytes);
  std::mutex mutex;  // guards `damage` and `damaged`
  std::optional<Error> damage;
  auto read = in_parallel_(jobs.size(), [&](size_t i) {
    UnitJobs::UnitPlace where;
    auto status = jobs.Run(i, {}, nullptr, where);
    if (!status && IsDamage(status.error())) {
      std::lock_guard lock(mutex);
      if (!damage) damaged = earlier_.Find(reader.index().units[where.unit].name)->image;
      if (!damage) damage = status.error();
    }
    return status;
  });
  if (damage) return Fail(std::move(*damage));  // of the same unit as `damaged`
  STASIS_TRY(std::move(read));
  linked.checked_unix_ns = now;
  return {};
}

}  // namespace stasis::store
