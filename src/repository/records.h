// The bodies of a repository's small objects, without their envelope (record.h). All decoding
// functions check every rule of docs/format/repository.md and return kDataLoss if one is broken.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "repository/layout.h"
#include "repository/pack_table.h"
#include "store/manifest.h"

namespace stasis::repository {

// `repo`
struct RepositoryInfo {
  Id128 id;
  bool is_sealed = false;
  // Data by which the sealing recognises its key. It contains no secret and has at most
  // kMaxParameterBytes.
  std::string parameters;
};
std::string EncodeInfo(const RepositoryInfo& info);
Result<RepositoryInfo> DecodeInfo(const Id128& repository, std::string_view body);

// index/PUSH.place
std::string EncodePlace(const std::vector<PackTable>& packs);
Result<std::vector<PackTable>> DecodePlace(std::string_view body);

// index/PUSH.names
struct NamesIndex {
  store::UnitNaming naming;
  std::vector<PackTable> packs;
  std::vector<Id128> names;  // of all units, in the order of `packs`
};
std::string EncodeNames(const NamesIndex& index);
Result<NamesIndex> DecodeNames(std::string_view body);

// Objects that must not be deleted: packs, and the indexes of pushes.
struct References {
  std::set<PackId> packs;
  std::set<PushId> pushes;

  void Add(const PackId& pack) {
    packs.insert(pack);
    pushes.insert(pack.push);
  }
};

void AppendPackIds(std::string& body, const std::vector<PackId>& packs);
Result<std::vector<PackId>> ReadPackIds(BodyReader& body);

// pending/PUSH
struct Pending {
  int64_t written_unix_ns = 0;
  std::vector<PushId> own;    // all objects of these pushes are needed
  std::vector<PackId> packs;  // of other pushes
};
std::string EncodePending(const Pending& pending);
Result<Pending> DecodePending(std::string_view body);

// condemned/GC
struct Condemned {
  int64_t written_unix_ns = 0;
  std::vector<PackId> packs;
  std::vector<PushId> indexes;
};
std::string EncodeCondemned(const Condemned& condemned);
Result<Condemned> DecodeCondemned(std::string_view body);

}  // namespace stasis::repository
