#include "criu/private_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>

#include "base/file.h"
#include "criu/core.pb.h"
#include "criu/image_entries.h"
#include "criu/memory.pb.h"

namespace stasis::criu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBase = 0x10000000;
constexpr uint32_t kPlain = 1 << 0 | 1 << 9;  // regular, private and anonymous
constexpr uint32_t kPresent = 4, kInParent = 1;
constexpr uint32_t kMapFlags = MAP_PRIVATE | MAP_ANONYMOUS;

uint64_t At(uint64_t page) { return kBase + page * kPage; }
MemoryMapping Mapping(uint64_t first, uint64_t end) {
  return {{At(first), At(end)}, PROT_READ | PROT_WRITE, kMapFlags, kPlain, 0};
}
PageEntry Entry(uint64_t first, uint64_t pages, uint32_t flags = kPresent) {
  image::PagemapEntry entry;
  entry.set_vaddr(At(first));
  entry.set_compat_nr_pages(static_cast<uint32_t>(pages));
  entry.set_nr_pages(pages);
  entry.set_flags(flags);
  return {At(first), pages, flags, entry.SerializeAsString()};
}

// A process with one page that stays with CRIU, and 100 pages of plain memory.
TaskMemory Task(pid_t pid = 7, pid_t parent = 1) {
  TaskMemory task;
  task.pid = pid;
  task.parent = parent;
  task.pages_id = 3;
  task.mappings = {{{At(0), At(1)}, PROT_READ, kMapFlags, kPlain, 0}, Mapping(10, 110)};
  task.pages = {Entry(0, 1), Entry(10, 100)};
  image::PagemapHead head;
  head.set_pages_id(3);
  task.pagemap_head = head.SerializeAsString();
  return task;
}

// Returns runs as "first page+pages@page in the file", for runs of 16 pages or more.
std::string Chosen(const TaskMemory& task, const std::vector<TaskMemory>& others = {}) {
  std::vector<TaskMemory> tasks = others;
  tasks.insert(tasks.begin(), task);
  std::string text;
  for (const MemoryRun& run : ChooseRuns(tasks[0], tasks, kPage, 16 * kPage)) {
    EXPECT_EQ(run.pid, task.pid);
    if (!text.empty()) text += ' ';
    text += std::to_string((run.address - kBase) / kPage) + '+' +
            std::to_string(run.size_bytes / kPage) + '@' + std::to_string(run.offset / kPage);
  }
  return text;
}

TEST(PrivateMemory, PlainMemoryIsChosen) { EXPECT_EQ(Chosen(Task()), "10+100@1"); }

TEST(PrivateMemory, EntriesThatFollowEachOtherAreOneRun) {
  TaskMemory task = Task();
  task.pages = {Entry(0, 1), Entry(10, 10), Entry(20, 10), Entry(40, 5), Entry(60, 50)};
  EXPECT_EQ(Chosen(task), "10+20@1 60+50@26");
}

TEST(PrivateMemory, OnlyPlainMemoryIsChosen) {
  const std::map<std::string, std::function<void(MemoryMapping&)>> others = {
      {"read-only", [](auto& m) { m.prot = PROT_READ; }},
      {"executable", [](auto& m) { m.prot |= PROT_EXEC; }},
      {"stack", [](auto& m) { m.flags |= MAP_GROWSDOWN; }},
      {"shared", [](auto& m) { m.flags = MAP_SHARED | MAP_ANONYMOUS; }},
      {"locked", [](auto& m) { m.flags |= MAP_LOCKED; }},
      {"huge pages of hugetlbfs", [](auto& m) { m.flags |= MAP_HUGETLB; }},
      {"file", [](auto& m) { m.status = 1 << 0 | 1 << 6; }},
      {"AIO ring", [](auto& m) { m.status |= 1 << 13; }},
      {"vdso", [](auto& m) { m.status |= 1 << 3; }},
      {"of a plugin", [](auto& m) { m.status |= 1 << 27; }},
      {"not for children", [](auto& m) { m.advice = 1 << MADV_DONTFORK; }},
      {"wiped in children", [](auto& m) { m.advice = 1 << MADV_WIPEONFORK; }},
      {"merged with equal pages", [](auto& m) { m.advice = 1 << MADV_MERGEABLE; }},
  };
  for (const auto& [what, change] : others) {
    TaskMemory task = Task();
    change(task.mappings[1]);
    EXPECT_EQ(Chosen(task), "") << what;
  }
  TaskMemory heap = Task();
  heap.mappings[1].status |= 1 << 5;
  heap.mappings[1].flags |= MAP_NORESERVE;
  heap.mappings[1].advice = 1 << MADV_HUGEPAGE;
  EXPECT_EQ(Chosen(heap), "10+100@1");
}

TEST(PrivateMemory, PagesThatTheKernelUsesAreLeftToCriu) {
  TaskMemory task = Task();
  task.kernel_areas = {{At(50) + 8, At(50) + 16}, {At(69) + 4000, At(70) + 10}, {8, 16}};
  EXPECT_EQ(Chosen(task), "10+40@1 51+18@42 71+39@62");
  task.kernel_areas.push_back({At(10), At(11)});
  EXPECT_EQ(Chosen(task), "11+39@2 51+18@42 71+39@62");
}

TEST(PrivateMemory, MemoryThatParentAndChildMayShareIsLeftToCriu) {
  TaskMemory parent = Task(7), child = Task(8, 7);
  EXPECT_EQ(Chosen(parent, {child}), "");
  EXPECT_EQ(Chosen(child, {parent}), "");
  EXPECT_EQ(Chosen(child, {Task(9, 1)}), "10+100@1") << "another process is no obstacle";
  child.mappings[1] = Mapping(10, 120);
  EXPECT_EQ(Chosen(parent, {child}), "10+100@1") << "CRIU shares only equal ranges";
  EXPECT_EQ(Chosen(child, {parent}), "10+100@1");
}

TEST(PrivateMemory, AGuardRegionLeavesItsMappingToCriu) {
  TaskMemory task = Task();
  MemoryMapping guard = Mapping(60, 61);
  guard.status = 1 << 16;
  task.mappings.push_back(guard);
  EXPECT_EQ(Chosen(task), "");
}

TEST(PrivateMemory, AnUnusualPageMapIsLeftToCriu) {
  const std::map<std::string, std::vector<PageEntry>> maps = {
      {"in an earlier image", {Entry(0, 1), Entry(10, 100, kPresent | kInParent)}},
      {"one entry in an earlier image", {Entry(0, 1, kInParent), Entry(10, 100)}},
      {"without pages", {Entry(0, 1), Entry(10, 100, 0)}},
      {"overlapping", {Entry(0, 1), Entry(10, 100), Entry(50, 10)}},
      {"unsorted", {Entry(10, 100), Entry(0, 1)}},
      {"nothing else", {Entry(10, 100)}},
      {"a size that overflows", {Entry(0, 1), Entry(10, UINT64_MAX / kPage)}},
      {"empty", {}},
  };
  for (const auto& [what, pages] : maps) {
    TaskMemory task = Task();
    task.pages = pages;
    EXPECT_EQ(Chosen(task), "") << what;
  }
  // Entries without pages take no space in the file.
  TaskMemory task = Task();
  task.pages = {Entry(0, 1), Entry(2, 3, 0), Entry(10, 100)};
  EXPECT_EQ(Chosen(task), "10+100@1");
}

// CRIU's files in memory.
class PrivateMemoryImages : public ::testing::Test {
 protected:
  void SetUp() override {
    image::Task root, ended;
    root.set_pid(7);
    root.set_ppid(0);
    root.add_threads(7);
    root.add_threads(70);
    ended.set_pid(8);
    ended.set_ppid(7);
    ended.add_threads(8);
    files_["pstree.img"] =
        MakeEntries(0x50273030, {root.SerializeAsString(), ended.SerializeAsString()});
    image::Mm mm;
    for (const MemoryMapping& mapping : Task().mappings) {
      auto* vma = mm.add_vmas();
      vma->set_start(mapping.begin);
      vma->set_end(mapping.end);
      vma->set_prot(mapping.prot);
      vma->set_flags(mapping.flags);
      vma->set_status(mapping.status);
    }
    files_["mm-7.img"] = MakeEntries(0x57492820, {mm.SerializeAsString()});
    files_["pagemap-7.img"] = PagemapWithout(Task(), {}, kPage);
    image::Core main, other;
    main.mutable_thread_info()->set_clear_tid_addr(At(20));
    main.mutable_thread_core()->set_futex_rla(At(21));
    main.mutable_thread_core()->set_futex_rla_len(24);
    other.mutable_ti_aarch64()->set_clear_tid_addr(At(22));
    other.mutable_thread_core()->mutable_sas()->set_ss_sp(At(23));
    other.mutable_thread_core()->mutable_sas()->set_ss_size(2 * kPage);
    other.mutable_thread_core()->mutable_rseq_entry()->set_rseq_abi_pointer(At(25));
    other.mutable_thread_core()->mutable_rseq_entry()->set_rseq_abi_size(32);
    files_["core-7.img"] = MakeEntries(0x55053847, {main.SerializeAsString()});
    files_["core-70.img"] = MakeEntries(0x55053847, {other.SerializeAsString()});
  }
  Result<std::vector<TaskMemory>> Read() const {
    return ReadTaskMemory([this](const std::string& name) -> Result<ImageFile> {
      auto file = files_.find(name);
      if (file == files_.end()) return Fail(Code::kNotFound, name);
      ImageFile opened{UniqueFd(::memfd_create("image", MFD_CLOEXEC)), file->second.size()};
      STASIS_TRY(WriteAll(opened.fd.get(), file->second));
      return opened;
    });
  }
  std::map<std::string, std::string> files_;
};

TEST_F(PrivateMemoryImages, AreRead) {
  auto tasks = Read();
  ASSERT_TRUE(tasks) << tasks.error().ToString();
  ASSERT_EQ(tasks->size(), 1u) << "a process that had ended has no memory";
  const TaskMemory& task = tasks->front();
  EXPECT_EQ(task.pagemap_name(), "pagemap-7.img");
  EXPECT_EQ(task.pages_name(), "pages-3.img");
  EXPECT_EQ(Chosen(task), "26+84@17");
  EXPECT_EQ(task.kernel_areas.size(), 5u);
}

TEST_F(PrivateMemoryImages, AreReadAgainWithoutTheRuns) {
  TaskMemory task = Task();
  task.pages = {Entry(0, 1), Entry(2, 3), Entry(10, 50), Entry(60, 50), Entry(110, 9)};
  const std::vector<MemoryRun> runs = {{7, At(12), 20 * kPage, 6 * kPage},
                                       {7, At(40), 30 * kPage, 34 * kPage},
                                       {7, At(100), 10 * kPage, 94 * kPage}};
  files_["pagemap-7.img"] = PagemapWithout(task, runs, kPage);
  auto tasks = Read();
  ASSERT_TRUE(tasks) << tasks.error().ToString();
  std::string left;
  for (const PageEntry& entry : tasks->front().pages) {
    EXPECT_EQ(entry.flags, kPresent);
    left +=
        std::to_string((entry.address - kBase) / kPage) + '+' + std::to_string(entry.pages) + ' ';
  }
  EXPECT_EQ(left, "0+1 2+3 10+2 32+8 70+30 110+9 ");
}

TEST_F(PrivateMemoryImages, DamagedFilesAreErrors) {
  const auto whole = files_;
  for (const auto& [name, bytes] : whole) {
    files_ = whole;
    files_[name] = bytes.substr(0, bytes.size() - 1);
    EXPECT_FALSE(Read()) << name;
    files_[name] = "x";
    EXPECT_FALSE(Read()) << name;
    files_.erase(name);
    EXPECT_EQ(Read().has_value(), name == "mm-7.img") << name;
  }
}

}  // namespace
}  // namespace stasis::criu
