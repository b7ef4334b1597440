#include "store/unit_jobs.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <tuple>

#include "base/file.h"
#include "store/thread_buffer.h"

namespace stasis::store {

namespace {

// Units that are at most this far apart are read together: the bytes between them cost less than
// another request.
constexpr uint64_t kGapBytes = 128 << 10;
constexpr uint64_t kMaxPieceBytes = 1 << 20;
// Limits the bytes that one work item copies to outputs, so that a unit with very many copies does
// not keep one thread busy when all others have finished.
constexpr uint64_t kCopiedBytes = 16 << 20;
constexpr uint32_t kNoPack = ~0u;
static_assert(kMaxExtentBytes <= UnitJobs::kJobBytes && kBlockBytes <= UnitJobs::kJobBytes);

}  // namespace

uint64_t UnitJobs::Add(uint32_t pack, uint32_t first, uint32_t count, uint32_t output,
                       uint64_t at) {
  const PackIndex& index = packs_[pack]->index();
  const auto most = static_cast<uint32_t>(std::max<uint64_t>(kMaxPieceBytes / index.unit_bytes, 1));
  uint64_t bytes = 0;
  for (uint32_t done = 0; done < count;) {
    const Extent& extent = index.ExtentOf(first + done);
    const uint32_t in_extent = first + done - extent.first;
    const uint32_t some = std::min({count - done, extent.units - in_extent, most});
    Piece piece{pack, first + done, some, {output, at + bytes}, 0, 0, 0, &extent};
    piece.bytes = index.BytesOf(extent, piece.first, some);
    if (extent.is_compressed()) {
      piece.offset = extent.offset;
      piece.end = extent.end();
    } else {
      piece.offset = extent.offset + uint64_t{in_extent} * index.unit_bytes;
      piece.end = in_extent + some == extent.units ? extent.end() : piece.offset + piece.bytes;
    }
    pieces_.push_back(piece);
    bytes += piece.bytes;
    done += some;
  }
  return bytes;
}

void UnitJobs::AddZeros(uint64_t bytes, uint32_t output, uint64_t at) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t some = std::min(bytes - done, kJobBytes);
    pieces_.push_back({kNoPack, 0, 0, {output, at + done}, some, 0, 0, nullptr});
    done += some;
  }
}

bool UnitJobs::Joins(const Job& job, const Piece& piece) const {
  const Piece& first = pieces_[job.begin];
  if (first.extent == nullptr || first.pack != piece.pack ||
      job.copied + piece.bytes > kCopiedBytes) {
    return false;
  }
  if (first.is_compressed() || piece.is_compressed()) return first.extent == piece.extent;
  const uint64_t end = job.offset + job.bytes;
  return piece.offset <= end + kGapBytes && std::max(end, piece.end) - job.offset <= kJobBytes;
}

void UnitJobs::Plan(Order order) {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.pack, a.first, a.to.output, a.to.at) <
           std::tie(b.pack, b.first, b.to.output, b.to.at);
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (jobs_.empty() || !Joins(jobs_.back(), piece)) {
      jobs_.push_back({i, i + 1, piece.offset, piece.end - piece.offset, piece.bytes});
      continue;
    }
    Job& job = jobs_.back();
    job.end = i + 1;
    job.bytes = std::max(job.offset + job.bytes, piece.end) - job.offset;
    job.copied += piece.bytes;
  }
  if (order == Order::kPacks) return;
  std::sort(jobs_.begin(), jobs_.end(), [this](const Job& a, const Job& b) {
    const Place& to_a = pieces_[a.begin].to;
    const Place& to_b = pieces_[b.begin].to;
    return std::tie(to_a.output, to_a.at) < std::tie(to_b.output, to_b.at);
  });
}

std::vector<UnitJobs::Use> UnitJobs::Used() const {
  std::vector<Use> used(packs_.size());
  uint32_t seen = 0;  // all units of the current pack below this number were counted
  const Extent* last_compressed = nullptr;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.extent == nullptr) continue;
    if (i == 0 || pieces_[i - 1].pack != piece.pack) seen = 0;
    const uint32_t end = piece.first + piece.units;
    const uint32_t begin = std::min(end, std::max(seen, piece.first));  // first uncounted unit
    seen = std::max(seen, end);
    Use& use = used[piece.pack];
    use.units += end - begin;
    if (piece.is_compressed()) {
      if (piece.extent != last_compressed) use.stored_bytes += piece.extent->stored_bytes;
      last_compressed = piece.extent;
    } else if (end > begin) {
      use.stored_bytes += packs_[piece.pack]->index().BytesOf(*piece.extent, begin, end - begin);
    }
  }
  return used;
}

// Searches from each piece only if the last search did not already cover it, because the kernel
// finds the next hole by a scan of the file (on tmpfs page by page).
bool UnitJobs::AnyIsHole(uint32_t pack) const {
  uint64_t data_end = 0;
  for (const Piece& piece : pieces_) {
    if (piece.pack != pack || piece.end <= data_end) continue;
    const off_t hole = ::lseek(packs_[pack]->fd(), static_cast<off_t>(piece.offset), SEEK_HOLE);
    if (hole < 0) return false;  // a file system without holes may return an error
    data_end = static_cast<uint64_t>(hole);
    if (data_end < piece.end) return true;
  }
  return false;
}

Status UnitJobs::Check(const Piece& piece, const char* data, UnitPlace& where) const {
  const PackReader& pack = *packs_[piece.pack];
  uint64_t at = 0;
  for (uint32_t i = 0; i < piece.units; ++i) {
    where = {{piece.to.output, piece.to.at + at}, piece.first + i};
    const uint64_t bytes = pack.index().BytesOf(*piece.extent, piece.first + i, 1);
    STASIS_TRY(pack.CheckUnit(piece.first + i, {data + at, bytes}));
    at += bytes;
  }
  return CheckPadding(piece, data);
}

// The padding of a compressed extent is checked when it is read.
Status UnitJobs::CheckPadding(const Piece& piece, const char* data) const {
  if (piece.is_compressed() || piece.end - piece.offset == piece.bytes) return {};
  return packs_[piece.pack]->CheckPadding(
      *piece.extent, {data + piece.bytes, piece.end - piece.offset - piece.bytes});
}

uint64_t UnitJobs::InBuffer(const Job& job, const Piece& piece) const {
  if (!piece.is_compressed()) return piece.offset - job.offset;
  return uint64_t{piece.first - piece.extent->first} * packs_[piece.pack]->index().unit_bytes;
}

Status UnitJobs::Read(size_t index, char* buffer, std::vector<Part>& parts,
                      UnitPlace& where) const {
  const Job& job = jobs_[index];
  const Piece& first = pieces_[job.begin];
  where = {first.to, first.first};
  if (first.extent == nullptr) {
    parts.push_back({first.to, first.bytes, 0, true});
    return {};
  }
  const PackReader& pack = *packs_[first.pack];
  STASIS_TRY(first.is_compressed() ? pack.ReadCompressed(*first.extent, buffer)
                                   : PreadAll(pack.fd(), buffer, job.bytes, job.offset));
  for (size_t i = job.begin; i < job.end; ++i) {
    const Piece& piece = pieces_[i];
    where = {piece.to, piece.first};
    const uint64_t at = InBuffer(job, piece);
    STASIS_TRY(CheckPadding(piece, buffer + at));
    parts.push_back({piece.to, piece.bytes, at, false});
  }
  return {};
}

Status UnitJobs::Run(size_t index, std::span<char* const> outputs, const Placed& placed,
                     UnitPlace& where) const {
  thread_local ThreadBuffer<kJobBytes> buffer;
  const Job& job = jobs_[index];
  const Piece& first = pieces_[job.begin];
  where = {first.to, first.first};
  const char* data = buffer.data();
  bool in_place = false;
  if (first.extent == nullptr) {
    if (!outputs.empty()) std::memset(outputs[first.to.output] + first.to.at, 0, first.bytes);
    in_place = true;
  } else if (first.is_compressed()) {
    STASIS_TRY(packs_[first.pack]->ReadCompressed(*first.extent, buffer.data()));
  } else {
    // A single piece is read directly into its output.
    in_place = !outputs.empty() && job.end - job.begin == 1 && job.bytes == first.bytes;
    char* to = in_place ? outputs[first.to.output] + first.to.at : buffer.data();
    STASIS_TRY(PreadAll(packs_[first.pack]->fd(), to, job.bytes, job.offset));
    data = to;
  }
  for (size_t i = job.begin; i < job.end; ++i) {
    const Piece& piece = pieces_[i];
    if (piece.extent != nullptr) {
      const uint64_t in_buffer = InBuffer(job, piece);
      STASIS_TRY(Check(piece, data + in_buffer, where));
      if (!outputs.empty() && !in_place) {
        std::memcpy(outputs[piece.to.output] + piece.to.at, data + in_buffer, piece.bytes);
      }
    }
    if (placed) STASIS_TRY(placed(piece.to, piece.bytes));
  }
  return {};
}

}  // namespace stasis::store
