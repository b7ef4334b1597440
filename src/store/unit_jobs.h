// Plans and runs the requests that read units. Units that are close to each other in a pack are
// read together, checked, and copied to their outputs. One thread adds units; after Plan, several
// threads may call Run.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/pack.h"

namespace stasis::store {

class UnitJobs {
 public:
  // The packs must outlive this object. Packs from which nothing is added may be nullptr.
  explicit UnitJobs(std::vector<const PackReader*> packs) : packs_(std::move(packs)) {}

  // Adds units of a pack that belong at offset `at` of an output. Returns their size in bytes.
  uint64_t Add(uint32_t pack, uint32_t first, uint32_t count, uint32_t output = 0, uint64_t at = 0);
  // Adds zeros, which are not in any pack.
  void AddZeros(uint64_t bytes, uint32_t output, uint64_t at);

  // The order of the work items: by pack, for sequential reads, or by output. Call Plan after all
  // units have been added.
  enum class Order : uint8_t { kPacks, kOutputs };
  void Plan(Order order);

  size_t size() const { return jobs_.size(); }
  uint32_t PackOf(size_t job) const { return pieces_[jobs_[job].begin].pack; }
  uint64_t BytesOf(size_t job) const { return jobs_[job].bytes; }
  // Returns true if any unit added from this pack lies at least partly in a hole of its file. Only
  // gc makes holes: a newly written unit has none.
  bool AnyIsHole(uint32_t pack) const;

  // An offset in one of the outputs.
  struct Place {
    uint32_t output = 0;
    uint64_t at = 0;
  };
  // The place of a unit in an output, and its number in the pack.
  struct UnitPlace : Place {
    uint32_t unit = 0;
  };
  using Placed = std::function<Status(const Place& place, uint64_t bytes)>;
  // Reads and checks the units of one work item. Copies them to the outputs, if there are any, and
  // calls `placed` for each part. Returns kDataLoss if a unit is damaged, and sets `where` to that
  // unit, or to the first unit if the whole work item cannot be read.
  Status Run(size_t job, std::span<char* const> outputs, const Placed& placed,
             UnitPlace& where) const;

  // The size of a buffer for any work item.
  static constexpr uint64_t kJobBytes = 2 << 20;
  // Bytes of a work item and their place in the buffer; zeros are not in the buffer.
  struct Part {
    Place to;
    uint64_t bytes;
    uint64_t buffer_offset;
    bool zero;
  };
  // Reads the units of one work item to `buffer` and appends their places. The caller must check
  // the units. Returns the errors of Run, and sets `where` likewise.
  Status Read(size_t job, char* buffer, std::vector<Part>& parts, UnitPlace& where) const;

  // The number of different units of a pack that were added, and their stored size in bytes.
  struct Use {
    uint64_t units = 0;
    uint64_t stored_bytes = 0;
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> Used() const;  // one entry for each pack

 private:
  // Units of one extent that follow each other in the pack and in an output.
  struct Piece {
    uint32_t pack;
    uint32_t first;  // number of the first unit
    uint32_t units;
    Place to;
    uint64_t bytes;        // logical
    uint64_t offset;       // in the pack; for a compressed extent, of the extent
    uint64_t end;          // end in the pack, including the padding if the piece ends the extent
    const Extent* extent;  // nullptr: zeros
    bool is_compressed() const { return extent != nullptr && extent->is_compressed(); }
  };
  // A work item: pieces that one request reads. `offset` and `bytes` describe the part of the pack
  // from the first piece to the last.
  struct Job {
    size_t begin;  // of pieces_
    size_t end;
    uint64_t offset;
    uint64_t bytes;
    uint64_t copied;  // to outputs
  };
  bool Joins(const Job& job, const Piece& piece) const;
  // Returns the offset of the piece's units in the buffer of its work item.
  uint64_t InBuffer(const Job& job, const Piece& piece) const;
  Status Check(const Piece& piece, const char* data, UnitPlace& where) const;
  Status CheckPadding(const Piece& piece, const char* data) const;

  std::vector<const PackReader*> packs_;
  std::vector<Piece> pieces_;  // after Plan by pack and unit
  std::vector<Job> jobs_;
};

}  // namespace stasis::store
