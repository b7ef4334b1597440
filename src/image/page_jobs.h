// Which requests read the pages that somebody needs: pieces that lie near each other in a pack are
// read together, compared, and copied to where they belong. Filled by one thread; then Run may be
// called by several at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "image/page_pack.h"

namespace stasis::image {

class PageJobs {
 public:
  // The packs outlive it; those from which nothing is added may be nullptr.
  explicit PageJobs(std::vector<const PagePackReader*> packs) : packs_(std::move(packs)) {}

  // So many pages of a pack, for byte `at` of an output. The pack has them.
  void Add(uint32_t pack, uint32_t first, uint32_t pages, uint32_t output = 0, uint64_t at = 0);
  // After the last Add.
  void Plan();

  size_t size() const { return jobs_.size(); }
  uint32_t PackOf(size_t job) const { return pieces_[jobs_[job].begin].pack; }
  uint64_t BytesOf(size_t job) const { return jobs_[job].bytes; }
  // Whether a part of what was added of a pack is a hole of the file, as gc makes them. Pages that
  // we wrote have none.
  bool AnyIsHole(uint32_t pack) const;

  // Reads and compares the pages of one job, and copies them to their outputs, unless there are
  // none. kDataLoss when one is not what it was; `where` is what it was for.
  struct Place {
    uint32_t output = 0;
    uint64_t at = 0;
  };
  Status Run(size_t job, std::span<char* const> outputs, Place& where) const;

  // Different pages that were added, and their bytes as they are stored; one entry a pack.
  struct Use {
    uint64_t pages = 0;
    uint64_t stored_bytes = 0;
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> Used() const;

 private:
  // Pages that lie together in a pack and belong together in an output.
  struct Piece {
    uint32_t pack;
    uint32_t page;  // number of the first
    uint32_t pages;
    uint32_t output;
    uint64_t at;
    uint64_t offset;  // in the pack; of a compressed extent, of the extent
    const PageExtent* extent;
    bool is_compressed() const { return extent->codec != Codec::kNone; }
    uint64_t end() const;
  };
  // Pieces that are read by one request, and the pack's bytes from the first to the last.
  struct Job {
    size_t begin;  // among the pieces
    size_t end;
    uint64_t offset;
    uint64_t bytes;
  };
  bool Joins(const Job& job, const Piece& piece) const;

  std::vector<const PagePackReader*> packs_;
  std::vector<Piece> pieces_;  // after Plan in the order of the packs
  std::vector<Job> jobs_;
};

}  // namespace stasis::image
