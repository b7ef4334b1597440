#include "store/page_links.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/file.h"
#include "image/page_jobs.h"
#include "store/clock.h"

namespace stasis::store {

using image::kPageBytes;
using image::Pack;
using image::PageJobs;
using image::PagePackReader;

// Before an image relies on pages that another wrote, under the pack's lock: as for blocks
// (block_writer.cc).
Status PageLinks::CheckReferences(const EarlierPages::EarlierPack& pack, NeededPages& candidate,
                                  Pack& linked) {
  const PagePackReader& reader = pack.reader;
  struct stat st;
  if (::fstat(reader.fd(), &st) != 0) return FailErrno(errno, "stat " + pack.pack.path());
  const int64_t now = UnixNow();
  int64_t checked = now;
  for (const auto& [image, when] : pack.checked_unix_ns) {
    if (!candidate.images.contains(image)) continue;
    if (!earlier_.IsStillThere(image)) return Fail(Code::kAborted, "its image is gone");
    checked = std::min(checked, when);
  }
  std::sort(candidate.numbers.begin(), candidate.numbers.end());
  PageJobs jobs({&reader});
  const auto& numbers = candidate.numbers;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    jobs.Add(0, numbers[i], static_cast<uint32_t>(end - i), 0, uint64_t{numbers[i]} * kPageBytes);
    i = end;
  }
  jobs.Plan();
  const PageJobs::Use used = jobs.Used()[0];
  linked = pack.pack;
  linked.linked = true;
  linked.used_blocks = used.pages;
  linked.used_bytes = used.stored_bytes;
  linked.checked_unix_ns = checked;
  const bool must_read =
      now - checked > how_.trust_ns || Ns(st.st_mtim) > checked || jobs.AnyIsHole(0);
  if (!must_read && used.stored_bytes > check_budget_) return {};
  check_budget_ -= std::min(check_budget_, used.stored_bytes);
  std::atomic<uint64_t> damaged{0};  // a byte of a page that is
  auto read = in_parallel_(jobs.size(), [&](size_t i) {
    PageJobs::Place where;
    auto status = jobs.Run(i, {}, where);
    if (!status) damaged = where.at;
    return status;
  });
  if (!read) {
    const auto* page = earlier_.Find(reader.pages()[damaged / kPageBytes].name);
    if (page != nullptr) candidate.damaged = page->image;
    return read;
  }
  linked.checked_unix_ns = now;
  return {};
}

bool PageLinks::Rely(uint32_t index, NeededPages& candidate, Pack& linked) {
  const auto& pack = earlier_.pack(index);
  const EarlierImage& image = earlier_.image(*candidate.images.begin());
  auto opened = writer_.LinkPack(image.folder.get(), pack.pack, pack.file);
  if (!opened) {
    if (CannotShare(opened.error()) && notes_.empty()) {
      notes_.push_back("CPU memory that earlier images have is written again: " +
                       opened.error().ToString());
    }
    return false;
  }
  auto status = CheckReferences(pack, candidate, linked);
  if (status) return true;
  writer_.UnlinkPack(pack.pack);
  if (status.error().code == Code::kDataLoss) {
    const EarlierImage& blamed = candidate.damaged ? earlier_.image(*candidate.damaged) : image;
    notes_.push_back(DamagedNote(blamed, pack.pack, status.error()));
  }
  return false;
}

}  // namespace stasis::store
