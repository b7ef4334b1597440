#include "device/cuda/device_files.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cuda/gpu_uuid.h"
#include "device/cuda/testing/target.h"

namespace stasis::device::cuda {
namespace {

TEST(DeviceFilesTest, AProcessWithoutADriverHasNone) {
  auto footprint = ReadFootprint({::getpid()});
  ASSERT_TRUE(footprint) << footprint.error().ToString();
  EXPECT_FALSE(footprint->candidate());
  EXPECT_EQ(ReadFootprint({0x3fffffff}).error().code, Code::kNotFound);
}

class MappedDriverTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MappedDriverTest, IsFound) {
  testing::TempDir dir;
  std::string path = dir.path() + "/" + GetParam();
  ASSERT_TRUE(WriteFileDurably(path, std::string(4096, 'x')));
  auto file = Open(path, O_RDONLY);
  ASSERT_TRUE(file);
  void* mapped = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, file->get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto footprint = ReadFootprint({::getpid()});
  ::munmap(mapped, 4096);
  ASSERT_TRUE(footprint);
  EXPECT_EQ(footprint->library, path);
  EXPECT_TRUE(footprint->files.empty());
  EXPECT_FALSE(footprint->hip) << "it has not opened a device";
}
INSTANTIATE_TEST_SUITE_P(Of, MappedDriverTest,
                         ::testing::Values("libcuda.so.580.159.04", "libamdhip64.so.6.4.60400"));

TEST(DeviceFilesTest, ReadsMinorNumbers) {
  testing::TempDir dir;
  for (auto [folder, uuid, minor] :
       {std::tuple("0000:01:00.0", "GPU-aa", "1"), std::tuple("0000:41:00.0", "GPU-bb", "0")}) {
    std::string path = dir.path() + "/" + folder;
    ASSERT_TRUE(MakeDirs(path));
    ASSERT_TRUE(WriteFileDurably(
        path + "/information",
        std::string("Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\nGPU UUID: \t ") + uuid +
            "\nBus Type: \t PCIe\nDevice Minor: \t " + minor + "\nGPU Excluded:\t No\n"));
  }
  auto minors = NvidiaMinors(dir.path());
  EXPECT_EQ(minors, (std::map<int, GpuUuid>{{0, {"GPU-bb"}}, {1, {"GPU-aa"}}}));
  EXPECT_TRUE(NvidiaMinors(dir.path() + "/nothing").empty());
}

TEST(GpuUuidTest, TextAndBytes) {
  const GpuUuid uuid{"GPU-00112233-4455-6677-8899-aabbccddeeff"};
  auto bytes = ToBytes(uuid);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->bytes[0], 0x00);
  EXPECT_EQ(bytes->bytes[15], 0xff);
  EXPECT_EQ(ToText(*bytes), uuid);
  for (const char* wrong :
       {"", "GPU-", "GPU-00112233-4455-6677-8899-aabbccddeef",
        "GPU-00112233-4455-6677-8899-aabbccddeefff", "MIG-00112233-4455-6677-8899-aabbccddeeff",
        "GPU-00112233+4455-6677-8899-aabbccddeeff", "GPU-0011223x-4455-6677-8899-aabbccddeeff"}) {
    EXPECT_FALSE(ToBytes({wrong})) << wrong;
  }
}

}  // namespace
}  // namespace stasis::device::cuda
