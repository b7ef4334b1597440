#include "image/page_jobs.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/file.h"

namespace stasis::image {

namespace {

// Pages that are not further apart than this are read together: what lies between costs less than
// another request.
constexpr uint64_t kGapBytes = 128 << 10;
constexpr uint64_t kJobBytes = 2 << 20;
constexpr uint32_t kPiecePages = 256;
static_assert(kMaxExtentBytes <= kJobBytes);

}  // namespace

uint64_t PageJobs::Piece::end() const {
  return is_compressed() ? extent->end() : offset + uint64_t{pages} * kPageBytes;
}

void PageJobs::Add(uint32_t pack, uint32_t first, uint32_t pages, uint32_t output, uint64_t at) {
  for (uint32_t done = 0; done < pages;) {
    const uint32_t page = first + done;
    const PageExtent& extent = packs_[pack]->ExtentOf(page);
    const uint32_t in_extent = page - extent.first;
    const uint32_t some = std::min({pages - done, extent.pages - in_extent, kPiecePages});
    const bool raw = extent.codec == Codec::kNone;
    pieces_.push_back({pack, page, some, output, at + uint64_t{done} * kPageBytes,
                       extent.offset + (raw ? uint64_t{in_extent} * kPageBytes : 0), &extent});
    done += some;
  }
}

bool PageJobs::Joins(const Job& job, const Piece& piece) const {
  const Piece& first = pieces_[job.begin];
  if (first.pack != piece.pack) return false;
  if (first.is_compressed() || piece.is_compressed()) return first.extent == piece.extent;
  const uint64_t end = job.offset + job.bytes;
  return piece.offset <= end + kGapBytes && std::max(end, piece.end()) - job.offset <= kJobBytes;
}

void PageJobs::Plan() {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.pack, a.page, a.output, a.at) < std::tie(b.pack, b.page, b.output, b.at);
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (jobs_.empty() || !Joins(jobs_.back(), piece)) {
      jobs_.push_back({i, i + 1, piece.offset, piece.end() - piece.offset});
      continue;
    }
    Job& job = jobs_.back();
    job.end = i + 1;
    job.bytes = std::max(job.offset + job.bytes, piece.end()) - job.offset;
  }
}

std::vector<PageJobs::Use> PageJobs::Used() const {
  std::vector<Use> used(packs_.size());
  uint32_t seen = 0;  // pages of the present pack, up to this one
  const PageExtent* last_compressed = nullptr;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (i == 0 || pieces_[i - 1].pack != piece.pack) seen = 0;
    const uint32_t end = piece.page + piece.pages;
    const uint32_t fresh = end - std::min(end, std::max(seen, piece.page));
    seen = std::max(seen, end);
    Use& use = used[piece.pack];
    use.pages += fresh;
    if (!piece.is_compressed()) {
      use.stored_bytes += uint64_t{fresh} * kPageBytes;
    } else if (piece.extent != last_compressed) {
      use.stored_bytes += piece.extent->stored_bytes;
      last_compressed = piece.extent;
    }
  }
  return used;
}

// One walk along the file: where the next hole is, is found by walking there, on tmpfs page by
// page.
bool PageJobs::AnyIsHole(uint32_t pack) const {
  uint64_t data_end = 0;
  for (const Piece& piece : pieces_) {
    if (piece.pack != pack || piece.end() <= data_end) continue;
    const off_t hole = ::lseek(packs_[pack]->fd(), static_cast<off_t>(piece.offset), SEEK_HOLE);
    if (hole < 0) return false;  // what has no holes may say so
    data_end = static_cast<uint64_t>(hole);
    if (data_end < piece.end()) return true;
  }
  return false;
}

Status PageJobs::Run(size_t index, std::span<char* const> outputs, Place& where) const {
  thread_local std::vector<char> buffer(kJobBytes);
  const Job& job = jobs_[index];
  const Piece& first = pieces_[job.begin];
  const PagePackReader& pack = *packs_[first.pack];
  where = {first.output, first.at};
  if (first.is_compressed()) {
    STASIS_TRY(pack.ReadExtent(*first.extent, buffer.data()));
  } else {
    STASIS_TRY(PreadAll(pack.fd(), buffer.data(), job.bytes, job.offset));
  }
  for (size_t i = job.begin; i < job.end; ++i) {
    const Piece& piece = pieces_[i];
    const uint64_t in_buffer = piece.is_compressed()
                                   ? uint64_t{piece.page - piece.extent->first} * kPageBytes
                                   : piece.offset - job.offset;
    const char* data = buffer.data() + in_buffer;
    for (uint32_t p = 0; p < piece.pages; ++p) {
      where = {piece.output, piece.at + uint64_t{p} * kPageBytes};
      STASIS_TRY(pack.CheckPage(piece.page + p, data + uint64_t{p} * kPageBytes));
    }
    if (outputs.empty()) continue;
    std::memcpy(outputs[piece.output] + piece.at, data, uint64_t{piece.pages} * kPageBytes);
  }
  return {};
}

}  // namespace stasis::image
