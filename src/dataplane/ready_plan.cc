#include "dataplane/ready_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace stasis::dataplane {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kUnit = 2u << 20;  // the size of an arena is a multiple of it

// The files of one key.
struct Files {
  const ArenaInfo* kept = nullptr;
  const ArenaInfo* ready = nullptr;
  bool away = false;  // the process is suspended, or an operation is in progress
};

struct ReadySize {
  uint64_t all = 0;  // of this user
  uint64_t own = 0;  // of the processes of the needs
};

ReadySize SizeOf(const std::vector<ArenaInfo>& arenas, const std::set<ArenaKey>& keys) {
  ReadySize size;
  for (const ArenaInfo& arena : arenas) {
    if (!arena.key || !arena.ready) continue;
    size.all += arena.allocated_bytes;
    if (keys.contains(*arena.key)) size.own += arena.allocated_bytes;
  }
  return size;
}

std::set<ArenaKey> KeysOf(const std::vector<ReadyNeed>& needs) {
  std::set<ArenaKey> keys;
  for (const ReadyNeed& need : needs) keys.insert(need.key);
  return keys;
}

uint64_t RoundUp(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

uint64_t ReadyBytes(const std::vector<ArenaInfo>& arenas) { return SizeOf(arenas, {}).all; }

bool IsScarce(const std::vector<ReadyNeed>& needs, const std::vector<ArenaInfo>& arenas,
              const ReadyBounds& bounds) {
  const ReadySize ready = SizeOf(arenas, KeysOf(needs));
  return ready.all / 2 > bounds.free_bytes || ready.own / 2 > bounds.groups_free_bytes;
}

ReadyPlan PlanReady(const std::vector<ReadyNeed>& needs, const std::vector<ArenaInfo>& arenas,
                    const ReadyBounds& bounds) {
  std::map<ArenaKey, Files> files;
  for (const ArenaInfo& arena : arenas) {
    if (!arena.key || !arena.in_memory) continue;
    Files& of_key = files[*arena.key];
    (arena.ready ? of_key.ready : of_key.kept) = &arena;
    of_key.away |= !arena.ready && !arena.kept;
  }
  const std::set<ArenaKey> needed = KeysOf(needs);
  ReadySize ready = SizeOf(arenas, needed);

  ReadyPlan plan;
  uint64_t free_bytes = bounds.free_bytes, groups_free_bytes = bounds.groups_free_bytes;
  auto free_ready = [&](const ArenaKey& key, Files& of_key) {
    const uint64_t bytes = of_key.ready->allocated_bytes;
    plan.free.push_back(key);
    ready.all -= bytes;
    free_bytes += bytes;
    if (needed.contains(key)) {
      ready.own -= bytes;
      groups_free_bytes += std::min(bytes, kUnlimited - groups_free_bytes);
    }
    of_key.ready = nullptr;
  };
  for (auto& [key, of_key] : files) {
    if (of_key.ready == nullptr || of_key.ready->in_use) continue;
    const bool superseded = of_key.away || of_key.kept != nullptr;
    if (superseded || (bounds.complete && !needed.contains(key))) free_ready(key, of_key);
  }
  // The bounds may have become smaller. Give back what would be made ready last.
  // The part of the free memory that may be as large as the ready files of this user.
  auto share = [&] { return free_bytes - std::min(free_bytes, bounds.others_ready_bytes); };
  auto too_much = [&] {
    return ready.all > bounds.most_bytes || ready.all > share() || ready.own > groups_free_bytes;
  };
  for (auto need = needs.rbegin(); need != needs.rend() && too_much(); ++need) {
    Files& of_key = files[need->key];
    if (of_key.ready == nullptr || of_key.ready->in_use) continue;
    free_ready(need->key, of_key);
  }

  uint64_t left = 0;
  if (!too_much()) {
    left = std::min({bounds.most_bytes - ready.all, (share() - ready.all) / 2,
                     (groups_free_bytes - ready.own) / 2});
  }
  left = left / kUnit * kUnit;
  for (const ReadyNeed& need : needs) {
    const Files& of_key = files[need.key];
    if (of_key.away) continue;
    const ArenaInfo* file = of_key.kept != nullptr ? of_key.kept : of_key.ready;
    const uint64_t has = file == nullptr ? 0 : file->capacity_bytes;
    const uint64_t wanted = RoundUp(need.bytes);
    if (wanted <= has) continue;
    const uint64_t more = std::min(wanted - has, left);
    if (more == 0) continue;
    left -= more;
    plan.make.push_back({need.key, need.owner, has + more});
  }
  return plan;
}

}  // namespace stasis::dataplane
