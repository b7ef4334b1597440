// CPU memory of an image is written to processes through a fake writer.
#include "checkpoint/direct_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "criu/image_entries.h"
#include "criu/memory.pb.h"
#include "criu/private_memory.h"
#include "store/beneath.h"
#include "store/page_writer.h"
#include "store/shared_units_testing.h"

namespace stasis::checkpoint {
namespace {

using store::kPageBytes;
using store::testing::Noise;
using store::testing::WriteFile;

constexpr uint64_t kPage = kPageBytes;
constexpr uint64_t kBase = 0x10000000;
constexpr uint64_t kPages = 1024;  // of memory that can be written directly
constexpr uint64_t kZeroPages = 100;

// Collects writes in a string.
class FakeWriter final : public process::MemoryWriter {
 public:
  Status Open(const process::ProcessId& process) override {
    EXPECT_EQ(process.pid.value, ::getpid());
    is_open_ = true;
    return {};
  }
  Status Write(process::HostPid pid, uint64_t address, std::string_view data) const override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(is_open_);
    EXPECT_EQ(pid.value, ::getpid());
    if (fail) return Fail(Code::kPermissionDenied, "no writes here");
    EXPECT_GE(address, kBase + kPage);
    EXPECT_LE(address + data.size(), kBase + kPage + memory.size());
    std::memcpy(memory.data() + (address - kBase - kPage), data.data(), data.size());
    return {};
  }
  bool fail = false;
  mutable std::string memory = std::string(kPages * kPage, '\0');

 private:
  bool is_open_ = false;
  mutable std::mutex mutex_;
};

class DirectPagesTest : public store::testing::SharedUnitsTest {
 protected:
  // Dumps a process with the pid of this one: one page for CRIU, and plain memory.
  void Dump(const std::string& name, bool plain = true) {
    auto writer = store::testing::MustBegin(store_.path(), name);
    const auto pid = std::to_string(::getpid());
    criu::image::Task task;
    task.set_pid(static_cast<uint32_t>(::getpid()));
    task.set_ppid(0);
    criu::image::Mm mm;
    auto add = [&](uint64_t begin, uint64_t pages, int prot) {
      auto* vma = mm.add_vmas();
      vma->set_start(begin);
      vma->set_end(begin + pages * kPage);
      vma->set_prot(static_cast<uint32_t>(prot));
      vma->set_flags(MAP_PRIVATE | MAP_ANONYMOUS);
      vma->set_status(1 << 0 | 1 << 9);
    };
    add(kBase, 1, PROT_READ);
    add(kBase + kPage, kPages, plain ? PROT_READ | PROT_WRITE : PROT_READ);
    criu::image::PagemapHead head;
    head.set_pages_id(1);
    criu::image::PagemapEntry entry;
    entry.set_vaddr(kBase);
    entry.set_compat_nr_pages(1 + kPages);
    entry.set_nr_pages(1 + kPages);
    entry.set_flags(4);
    const std::string cpu = writer->cpu_path() + "/";
    WriteFile(cpu + "pstree.img", criu::MakeEntries(0x50273030, {task.SerializeAsString()}));
    WriteFile(cpu + "mm-" + pid + ".img", criu::MakeEntries(0x57492820, {mm.SerializeAsString()}));
    WriteFile(cpu + "pagemap-" + pid + ".img",
              criu::MakeEntries(0x56084025, {head.SerializeAsString(), entry.SerializeAsString()}));
    memory_ = Noise(kPages * kPage);
    memory_.replace(50 * kPage, kZeroPages * kPage, std::string(kZeroPages * kPage, '\0'));
    first_ = Noise(kPage, 99);
    WriteFile(cpu + "pages-1.img", first_ + memory_);
    WriteFile(cpu + "pages-2.img", Noise(3 * kPage, 98));  // shared memory
    auto written = store::WritePages(*writer, store::testing::Key(), Options(), {});
    ASSERT_TRUE(written) << written.error().ToString();
    store::Manifest manifest = store::testing::FullManifest();
    manifest.job.uid = Options().uid;
    manifest.job.id = Options().job_id;
    written->DescribeIn(manifest);
    Status committed = writer->Commit(manifest, {});
    ASSERT_TRUE(committed) << committed.error().ToString();
    auto reader = store::ImageReader::Open(store_ / name);
    ASSERT_TRUE(reader) << reader.error().ToString();
    reader_ = std::move(*reader);
  }
  DirectPages MustChoose() const {
    auto chosen = DirectPages::Choose(*reader_);
    EXPECT_TRUE(chosen) << chosen.error().ToString();
    EXPECT_TRUE(chosen->has_value());
    return std::move(**chosen);
  }
  static process::ProcessTree Tree() {
    auto self = process::ReadStat({::getpid()});
    return {{*self}};
  }

  std::unique_ptr<store::ImageReader> reader_;
  std::string memory_, first_;
};

TEST_F(DirectPagesTest, PlainMemoryIsWrittenAndTheRestIsInFiles) {
  Dump("a");
  const DirectPages pages = MustChoose();
  EXPECT_EQ(pages.bytes(), kPages * kPage);
  FakeWriter writer;
  Status written = pages.Write(Tree(), writer, nullptr);
  ASSERT_TRUE(written) << written.error().ToString();
  EXPECT_TRUE(writer.memory == memory_);

  store::testing::TempStore folder;
  auto fd = store::OpenFolder(folder.path());
  store::UnitReader::Selection selection;
  selection.page_files = true;
  selection.files = pages.files();
  auto units = store::UnitReader::Open(*reader_, std::move(selection));
  ASSERT_TRUE(units) << units.error().ToString();
  ASSERT_TRUE(units->MakeFiles(fd->get(), nullptr));
  EXPECT_TRUE(*ReadFile(folder / "pages-1.img") == first_);
  EXPECT_TRUE(*ReadFile(folder / "pages-2.img") == Noise(3 * kPage, 98));
  ASSERT_EQ(pages.pagemaps().size(), 1u);
  EXPECT_NE(pages.pagemaps().begin()->second, "");
}

TEST_F(DirectPagesTest, NothingIsChosenIfCriuMustRestoreAll) {
  Dump("a", /*plain=*/false);
  auto chosen = DirectPages::Choose(*reader_);
  ASSERT_TRUE(chosen) << chosen.error().ToString();
  EXPECT_FALSE(chosen->has_value());
}

TEST_F(DirectPagesTest, ADamagedPageIsFound) {
  Dump("a");
  const std::string pack = store_ / "a/" + reader_->manifest().packs[0].path();
  const UniqueFd file(::open(pack.c_str(), O_RDWR | O_CLOEXEC));
  char byte = 0;
  const off_t at = 300 * kPage + 17;
  ASSERT_EQ(::pread(file.get(), &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(file.get(), &byte, 1, at), 1);
  const DirectPages pages = MustChoose();
  FakeWriter writer;
  Status written = pages.Write(Tree(), writer, nullptr);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kDataLoss) << written.error().ToString();
  EXPECT_NE(written.error().message.find("pages-1.img from byte"), std::string::npos)
      << written.error().ToString();
}

TEST_F(DirectPagesTest, ErrorsOfTheWriterAreReported) {
  Dump("a");
  const DirectPages pages = MustChoose();
  FakeWriter writer;
  writer.fail = true;
  Status written = pages.Write(Tree(), writer, nullptr);
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find("no writes here"), std::string::npos);
  auto cancel = [](uint64_t, uint64_t) { return false; };
  FakeWriter other;
  Status cancelled = pages.Write(Tree(), other, cancel);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::kCancelled);
}

TEST_F(DirectPagesTest, AProcessOutsideOfTheTreeIsNotWrittenTo) {
  Dump("a");
  const DirectPages pages = MustChoose();
  auto parent = process::ReadStat({::getppid()});
  ASSERT_TRUE(parent);
  FakeWriter writer;
  Status written = pages.Write({{*parent}}, writer, nullptr);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::kDataLoss);
}

}  // namespace
}  // namespace stasis::checkpoint
