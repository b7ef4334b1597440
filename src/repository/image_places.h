// Where the units of an image are in a repository's packs.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "repository/image_record.h"
#include "repository/pack_table.h"
#include "repository/repository.h"

namespace stasis::repository {

class ImagePlaces {
 public:
  // Reads the indexes of all pushes that the image needs. Returns kDataLoss if an index is missing
  // or damaged, lacks a unit that the image needs, or records another length for it. Returns
  // kResourceExhausted if the tables of all packs have more than `max_groups` groups. `record` must
  // outlive the object.
  static Result<ImagePlaces> Read(const Repository& repository, const ImageRecord& record,
                                  const objects::CallOptions& call,
                                  uint64_t max_groups = kMaxIndexGroups);

  // The table of record.packs[pack].
  const PackTable& table(uint32_t pack) const { return tables_[pack]; }
  const PackId& id(uint32_t pack) const { return record_->packs[pack]; }

 private:
  explicit ImagePlaces(const ImageRecord& record) : record_(&record) {}
  Status ReadTables(const Repository& repository, const objects::CallOptions& call,
                    uint64_t max_groups);
  Status Check() const;

  const ImageRecord* record_;
  std::vector<PackTable> tables_;
};

}  // namespace stasis::repository
