#include "criu/private_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "criu/core.pb.h"
#include "criu/image_entries.h"
#include "criu/memory.pb.h"

namespace stasis::criu {
namespace {

// Kinds of CRIU's image files.
constexpr uint32_t kMm = 0x57492820;
constexpr uint32_t kPagemap = 0x56084025;
constexpr uint32_t kCore = 0x55053847;

// Bits of PageEntry::flags.
constexpr uint32_t kInParent = 1, kInFile = 4;

// Bits of MemoryMapping::status.
constexpr uint32_t kRegular = 1 << 0, kHeap = 1 << 5, kPrivateAnonymous = 1 << 9;

// Advice that changes neither the contents of memory nor how it is inherited.
constexpr uint64_t kHarmlessAdvice =
    1u << MADV_HUGEPAGE | 1u << MADV_NOHUGEPAGE | 1u << MADV_DONTDUMP;

// The kernel may use more of this area than CRIU has recorded.
constexpr uint64_t kLeastRseqBytes = 256;

tl::unexpected<Error> BadEntry(const std::string& what) {
  return Fail(Code::kInternal, Domain::kCriu, 0, what + " does not have the format of CRIU 4");
}

// Calls `look` with the bytes of each entry.
Status ReadImage(const OpenImage& open, const std::string& name, uint32_t kind,
                 const std::function<Status(const std::string&)>& look) {
  STASIS_ASSIGN(const ImageFile file, open(name));
  return ReadEntries(file.fd.get(), file.size_bytes, kind, name, look);
}

Status AddThread(const OpenImage& open, uint32_t tid, std::vector<MemoryArea>& areas) {
  const std::string name = fmt::format("core-{}.img", tid);
  return ReadImage(open, name, kCore, [&](const std::string& bytes) -> Status {
    image::Core core;
    if (!core.ParseFromString(bytes)) return BadEntry(name);
    auto add = [&](uint64_t begin, uint64_t size) {
      if (begin != 0 && size != 0) areas.push_back({begin, begin + size});
    };
    const image::ThreadCore& thread = core.thread_core();
    add(thread.futex_rla(), thread.futex_rla_len());
    add(thread.sas().ss_sp(), thread.sas().ss_size());
    add(thread.rseq_entry().rseq_abi_pointer(),
        std::max<uint64_t>(thread.rseq_entry().rseq_abi_size(), kLeastRseqBytes));
    for (const image::ThreadInfo* info : {&core.thread_info(), &core.ti_aarch64()}) {
      add(info->clear_tid_addr(), sizeof(int));
    }
    return {};
  });
}

Status ReadMappings(const OpenImage& open, TaskMemory& task) {
  const std::string name = fmt::format("mm-{}.img", task.pid);
  return ReadImage(open, name, kMm, [&](const std::string& bytes) -> Status {
    image::Mm mm;
    if (!mm.ParseFromString(bytes)) return BadEntry(name);
    for (const image::Vma& vma : mm.vmas()) {
      task.mappings.push_back(
          {{vma.start(), vma.end()}, vma.prot(), vma.flags(), vma.status(), vma.madv()});
    }
    return {};
  });
}

Status ReadPagemap(const OpenImage& open, TaskMemory& task) {
  const std::string name = task.pagemap_name();
  return ReadImage(open, name, kPagemap, [&](const std::string& bytes) -> Status {
    if (task.pagemap_head.empty()) {
      image::PagemapHead head;
      if (!head.ParseFromString(bytes)) return BadEntry(name);
      task.pages_id = head.pages_id();
      task.pagemap_head = bytes;
      return {};
    }
    image::PagemapEntry entry;
    if (!entry.ParseFromString(bytes)) return BadEntry(name);
    // CRIU before 4.0 has no flags.
    const uint32_t flags = entry.has_flags() ? entry.flags() : kInParent;
    const uint64_t pages = entry.has_nr_pages() ? entry.nr_pages() : entry.compat_nr_pages();
    task.pages.push_back(
        {entry.vaddr(), pages, entry.in_parent() ? flags | kInParent : flags, bytes});
    return {};
  });
}

bool Overlap(const MemoryArea& a, const MemoryArea& b) {
  return a.begin < b.end && b.begin < a.end;
}

// Returns true if nothing but the program's own writes decides what this memory contains.
bool IsPlain(const MemoryMapping& mapping) {
  constexpr uint32_t kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  return (mapping.status & ~kHeap) == (kRegular | kPrivateAnonymous) &&
         (mapping.flags & ~uint32_t{MAP_NORESERVE}) == kFlags &&
         mapping.prot == (PROT_READ | PROT_WRITE) && (mapping.advice & ~kHarmlessAdvice) == 0;
}

// Returns true if CRIU may share the pages of this memory between a parent and a child. It does so
// only if both have a mapping from the same address to the same address.
bool MayBeShared(const MemoryMapping& mapping, const TaskMemory& task,
                 const std::vector<TaskMemory>& tasks) {
  return std::any_of(tasks.begin(), tasks.end(), [&](const TaskMemory& other) {
    if (&other == &task || (other.parent != task.pid && task.parent != other.pid)) return false;
    return std::any_of(other.mappings.begin(), other.mappings.end(), [&](const auto& its) {
      return its.begin == mapping.begin && its.end == mapping.end;
    });
  });
}

// Returns the parts of the address space that may be left out, in order.
std::vector<MemoryArea> AllowedAreas(const TaskMemory& task, const std::vector<TaskMemory>& tasks,
                                     uint64_t page_bytes, uint64_t min_bytes) {
  std::vector<MemoryArea> kept;
  for (const MemoryArea& area : task.kernel_areas) {
    kept.push_back({area.begin / page_bytes * page_bytes,
                    (area.end + page_bytes - 1) / page_bytes * page_bytes});
  }
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<MemoryArea> allowed;
  for (const MemoryMapping& mapping : task.mappings) {
    if (mapping.end < mapping.begin + min_bytes || !IsPlain(mapping)) continue;
    if (MayBeShared(mapping, task, tasks)) continue;
    // CRIU lists guard regions as mappings of their own.
    const bool alone = std::none_of(
        task.mappings.begin(), task.mappings.end(),
        [&](const auto& other) { return &other != &mapping && Overlap(other, mapping); });
    if (!alone) continue;
    uint64_t begin = mapping.begin;
    for (const MemoryArea& area : kept) {
      if (area.end <= begin) continue;
      if (area.begin >= mapping.end) break;
      if (area.begin > begin) allowed.push_back({begin, area.begin});
      begin = area.end;
    }
    if (begin < mapping.end) allowed.push_back({begin, mapping.end});
  }
  std::sort(allowed.begin(), allowed.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return allowed;
}

// Returns true if the entries are sorted and none of them overlaps another or is in an earlier
// image.
bool InOrder(const std::vector<PageEntry>& pages, uint64_t page_bytes) {
  uint64_t end = 0;
  for (const PageEntry& entry : pages) {
    const bool fits =
        entry.address % page_bytes == 0 && entry.pages <= (UINT64_MAX - entry.address) / page_bytes;
    if (!fits || entry.address < end || (entry.flags & kInParent) != 0) return false;
    end = entry.address + entry.pages * page_bytes;
  }
  return true;
}

std::string EntryOf(const PageEntry& old, uint64_t address, uint64_t pages) {
  image::PagemapEntry entry;
  (void)entry.ParseFromString(old.bytes);  // ReadPagemap has parsed it
  entry.set_vaddr(address);
  entry.set_compat_nr_pages(static_cast<uint32_t>(pages));
  if (entry.has_nr_pages()) entry.set_nr_pages(pages);
  return entry.SerializeAsString();
}

}  // namespace

std::string TaskMemory::pagemap_name() const { return fmt::format("pagemap-{}.img", pid); }
std::string TaskMemory::pages_name() const { return fmt::format("pages-{}.img", pages_id); }

Result<std::vector<TaskMemory>> ReadTaskMemory(const OpenImage& open) {
  std::vector<image::Task> found;
  STASIS_TRY(ReadImage(open, "pstree.img", kPstreeImage, [&](const std::string& bytes) -> Status {
    if (!found.emplace_back().ParseFromString(bytes)) return BadEntry("pstree.img");
    return {};
  }));
  std::vector<TaskMemory> tasks;
  for (const image::Task& one : found) {
    TaskMemory task;
    task.pid = static_cast<pid_t>(one.pid());
    task.parent = static_cast<pid_t>(one.ppid());
    Status read = ReadMappings(open, task);
    // A process that had ended has no memory.
    if (!read && read.error().code == Code::kNotFound) continue;
    STASIS_TRY(std::move(read));
    STASIS_TRY(ReadPagemap(open, task));
    for (uint32_t tid : one.threads()) STASIS_TRY(AddThread(open, tid, task.kernel_areas));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

std::vector<MemoryRun> ChooseRuns(const TaskMemory& task, const std::vector<TaskMemory>& tasks,
                                  uint64_t page_bytes, uint64_t min_bytes) {
  if (!InOrder(task.pages, page_bytes)) return {};
  const std::vector<MemoryArea> allowed = AllowedAreas(task, tasks, page_bytes, min_bytes);
  std::vector<MemoryRun> runs;
  auto area = allowed.begin();
  uint64_t offset = 0;
  for (const PageEntry& entry : task.pages) {
    if ((entry.flags & kInFile) == 0) continue;
    const uint64_t end = entry.address + entry.pages * page_bytes;
    while (area != allowed.end() && area->end <= entry.address) ++area;
    for (auto at = area; at != allowed.end() && at->begin < end; ++at) {
      const uint64_t from = std::max(at->begin, entry.address), to = std::min(at->end, end);
      const uint64_t in_file = offset + (from - entry.address);
      MemoryRun* last = runs.empty() ? nullptr : &runs.back();
      if (last != nullptr && last->address + last->size_bytes == from &&
          last->offset + last->size_bytes == in_file) {
        last->size_bytes += to - from;
      } else {
        runs.push_back({task.pid, from, to - from, in_file});
      }
    }
    offset += end - entry.address;
  }
  std::erase_if(runs, [&](const MemoryRun& run) { return run.size_bytes < min_bytes; });
  uint64_t bytes = 0;
  for (const MemoryRun& run : runs) bytes += run.size_bytes;
  // CRIU expects a page map that is not empty.
  if (bytes == offset) return {};
  return runs;
}

std::string PagemapWithout(const TaskMemory& task, const std::vector<MemoryRun>& runs,
                           uint64_t page_bytes) {
  std::vector<std::string> entries = {task.pagemap_head};
  auto run = runs.begin();
  for (const PageEntry& entry : task.pages) {
    const uint64_t end = entry.address + entry.pages * page_bytes;
    uint64_t at = entry.address;
    auto keep = [&](uint64_t to) {
      if (to > at) entries.push_back(EntryOf(entry, at, (to - at) / page_bytes));
    };
    while (run != runs.end() && run->address < end) {
      keep(std::max(run->address, at));
      at = std::min(run->address + run->size_bytes, end);
      if (run->address + run->size_bytes > end) break;  // it continues in the next entry
      ++run;
    }
    keep(end);
  }
  return MakeEntries(kPagemap, entries);
}

}  // namespace stasis::criu
