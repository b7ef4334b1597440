// Chooses private memory of a program that CRIU need not restore, because checkpoint/direct_pages
// writes it into the restored, still stopped processes. CRIU maps the memory in any case; what it
// does not find in a page map stays zero. docs/decisions/cpu-memory-from-outside.md has the rules.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::criu {

// A part of an address space.
struct MemoryArea {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct MemoryMapping : MemoryArea {
  uint32_t prot = 0;    // as for mmap
  uint32_t flags = 0;   // as for mmap
  uint32_t status = 0;  // kinds of CRIU
  uint64_t advice = 0;  // bit N: madvise(N)
};

// Pages that follow each other in memory. If CRIU's file has them, they also do there.
struct PageEntry {
  uint64_t address = 0;
  uint64_t pages = 0;
  uint32_t flags = 0;
  std::string bytes = {};  // of the entry in the page map
};

// The memory of one process, as CRIU describes it. The pids are those of the program's own
// namespace.
struct TaskMemory {
  pid_t pid = 0;
  pid_t parent = 0;
  uint32_t pages_id = 0;  // the file is pages-ID.img
  std::vector<MemoryMapping> mappings;
  std::vector<PageEntry> pages;
  std::string pagemap_head;
  // Memory that the kernel reads or writes for a thread, or may do so before the program runs.
  std::vector<MemoryArea> kernel_areas;

  std::string pagemap_name() const;
  std::string pages_name() const;
};

// Pages that follow each other in the memory of a process and in CRIU's file.
struct MemoryRun {
  pid_t pid = 0;
  uint64_t address = 0;
  uint64_t size_bytes = 0;
  uint64_t offset = 0;  // in the file
};

struct ImageFile {
  UniqueFd fd;
  uint64_t size_bytes = 0;
};
// Opens one of CRIU's files. Returns kNotFound if there is no such file.
using OpenImage = std::function<Result<ImageFile>(const std::string& name)>;

// Reads the memory of all processes that have any. Returns kInternal if the format is not that of
// CRIU 4, and the errors of `open`.
Result<std::vector<TaskMemory>> ReadTaskMemory(const OpenImage& open);

// Shorter runs are left to CRIU.
inline constexpr uint64_t kMinRunBytes = 1 << 20;

// Returns the runs of one task, in order, of `min_bytes` or more. `tasks` are all processes of the
// program; `task` is one of them. Leaves at least one page to CRIU. The result is empty if the page
// map is not in order.
std::vector<MemoryRun> ChooseRuns(const TaskMemory& task, const std::vector<TaskMemory>& tasks,
                                  uint64_t page_bytes, uint64_t min_bytes = kMinRunBytes);

// Returns the bytes of the page map without these runs of ChooseRuns.
std::string PagemapWithout(const TaskMemory& task, const std::vector<MemoryRun>& runs,
                           uint64_t page_bytes);

}  // namespace stasis::criu
