// Finds units that a repository contains already, by their names. All results are hints: after a
// push has announced which packs it needs, it checks again that they exist (push.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "objects/object_store.h"
#include "repository/records.h"
#include "repository/repository.h"
#include "store/manifest.h"
#include "store/name_table.h"

namespace stasis::repository {

class KnownUnits {
 public:
  // Limits on the data that is kept from all indexes together. Packs beyond these limits are not
  // used, and a note reports this.
  struct Limits {
    uint64_t units = 2 * kMaxIndexNames;  // about 32 bytes each
    uint64_t groups = kMaxIndexGroups;
  };
  KnownUnits() = default;
  // Reads the names of the units of all packs that exist, that no gc has condemned, and whose names
  // were made with `naming`. Also reads which of these units images need.
  static Result<KnownUnits> Look(const Repository& repository, const store::UnitNaming& naming,
                                 const objects::CallOptions& call);
  static Result<KnownUnits> Look(const Repository& repository, const store::UnitNaming& naming,
                                 const objects::CallOptions& call, const Limits& limits);

  struct Unit {
    uint32_t pack;    // for PackOf
    uint32_t number;  // in the pack
  };
  // Returns nullptr if the repository does not have the unit with this name and length.
  const Unit* Find(const Id128& name, uint32_t bytes) const;
  const PackId& PackOf(uint32_t pack) const { return packs_[pack].id; }
  // Returns the object size in bytes of each pack.
  std::map<PackId, uint64_t> ObjectBytes() const;

  // Records that the new image needs a unit.
  void Want(const Unit& unit);
  // Returns whether the new image may rely on a pack: only if the new image and the other images
  // together need at least half of it. Otherwise the needed units are uploaded again, and gc can
  // delete the pack when the other images are gone. Call this after Want() was called for all
  // needed units.
  bool IsWorthKeeping(uint32_t pack) const;

  // Notes for the user about objects that could not be read.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct KnownPack {
    PackId id;
    PackTable table;
    std::vector<bool> needed;  // by unit number
    uint64_t needed_bytes = 0;
  };
  // `usable` has the packs that exist, with the sizes of their objects in bytes.
  Status AddNames(const Repository& repository, const PushId& push, const store::UnitNaming& naming,
                  const std::map<PackId, uint64_t>& usable, const objects::CallOptions& call);
  Status MarkNeeded(const Repository& repository, const objects::CallOptions& call);
  void MarkUnits(const ImageRecord& image);
  void Need(KnownPack& pack, uint32_t number);
  void BuildTable();

  Limits limits_;
  uint64_t groups_ = 0;           // of packs_
  bool is_partial_ = false;       // a limit was reached
  std::vector<KnownPack> packs_;  // in the order of their ids
  std::vector<Unit> units_;
  std::vector<Id128> names_;  // of units_
  store::NameTable by_name_;
  std::vector<std::string> notes_;
};

}  // namespace stasis::repository
