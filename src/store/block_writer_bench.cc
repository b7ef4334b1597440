// Measures the path from an arena to the packs of an image: its rate, and its processor time per
// GiB. Both depend on the machine, so no test checks them.
//
//   block_writer_bench DIR MIB [ROUNDS]
//
// Images are written to DIR and removed again. The data is in a file in memory, like an arena. Half
// of it is noise; in the other half, every other 16 bytes are zero. Prints the median, minimum and
// maximum of the rounds (default 5) for each variant.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/parallel.h"
#include "store/block_writer.h"
#include "store/image_reader.h"
#include "store/store_folder.h"

namespace stasis::store {
namespace {

std::string g_dir;        // NOLINT: a program of one file
std::string_view g_data;  // NOLINT

double CpuSeconds() {
  rusage used;
  ::getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void Must(const Status& status) {
  if (status) return;
  fmt::print(stderr, "{}\n", status.error().ToString());
  std::exit(1);
}

template <class T>
T Must(Result<T> result) {
  if (!result) Must(Status(Fail(std::move(result).error())));
  return std::move(*result);
}

void FillWithNoise(char* data, size_t bytes) {
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const bool zero = i >= bytes / 2 && i % 32 < 16;
    const uint64_t word = zero ? 0 : random();
    std::memcpy(data + i, &word, 8);
  }
}

std::vector<Id128> HashesOf(const BlockKey& key) {
  std::vector<Id128> hashes;
  for (size_t at = 0; at < g_data.size(); at += kBlockBytes) {
    hashes.push_back(key.Hash(g_data.substr(at, kBlockBytes)));
  }
  return hashes;
}

const UnitNames& Key() {
  static const UnitNames key(BlockSecret{});
  return key;
}

// Writes one image of all the data and syncs it.
struct Dump {
  Compression compression;
  unsigned packs;
  std::span<const Id128> hashes = {};
  uint64_t stored = 0;
  size_t files = 0;

  void operator()() {
    auto writer = Must(ImageWriter::Begin(g_dir, "bench"));
    WriteOptions options;
    options.compression = compression;
    options.share = false;
    options.packs.count = packs;
    auto written = Must(WriteBlocks(
        *writer, Key(), {{{0, 0x7f0000000000, g_data.size(), kBlockBytes, {}, 1}, g_data, hashes}},
        options));
    stored = written.stored_bytes;
    files = written.packs.size();
    Manifest manifest;
    manifest.host = HostNow();
    manifest.processes = {{1, 0, 1, "bench", "", GpuState::kRunning, {"GPU-1"}, 0, 1, 1, 1}};
    manifest.gpus = {{"GPU-1", "bench", 0, 0}};
    written.DescribeIn(manifest);
    Must(writer->Commit(manifest, {}));
  }
};

void Measure(
    const std::string& what, int rounds, const std::function<void()>& work,
    const std::function<void()>& clean = [] {}) {
  std::vector<double> rates, cpu;
  for (int i = 0; i < rounds; ++i) {
    const double before = CpuSeconds();
    const Stopwatch watch;
    work();
    rates.push_back(static_cast<double>(g_data.size()) / watch.Seconds() / 1e9);
    cpu.push_back((CpuSeconds() - before) / (static_cast<double>(g_data.size()) / (1 << 30)));
    clean();
  }
  std::sort(rates.begin(), rates.end());
  std::sort(cpu.begin(), cpu.end());
  fmt::print(
      "{:44} {:6.2f} GB/s ({:.2f} to {:.2f})  {:.3f} s of CPU time per GiB ({:.3f} to {:.3f})\n",
      what, rates[rates.size() / 2], rates.front(), rates.back(), cpu[cpu.size() / 2], cpu.front(),
      cpu.back());
  std::fflush(stdout);
}

int Run(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "block_writer_bench DIR MIB [ROUNDS]\n");
    return 2;
  }
  g_dir = argv[1];
  const size_t bytes = std::strtoull(argv[2], nullptr, 10) << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  const int fd = ::memfd_create("arena", MFD_CLOEXEC);
  if (bytes == 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return 2;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED) return 2;
  FillWithNoise(static_cast<char*>(at), bytes);
  g_data = {static_cast<char*>(at), bytes};

  fmt::print("{} MiB, {} processors\n", bytes >> 20, ProcessorCount());
  auto each = [&](const std::function<void(std::string_view)>& f) {
    return [f] {
      for (size_t i = 0; i < g_data.size(); i += kBlockBytes) f(g_data.substr(i, kBlockBytes));
    };
  };
  volatile uint8_t sink = 0;
  std::vector<char> out(kBlockBytes);
  Measure("checksum, one thread", rounds, each([&](auto b) { sink = Checksum(b).bytes[0]; }));
  Measure("hash, one thread", rounds, each([&](auto b) { sink = Key().key().Hash(b).bytes[0]; }));
  for (auto codec : {Codec::kLz4, Codec::kZstd}) {
    Measure(fmt::format("{}, one thread", CodecName(codec)), rounds,
            each([&](auto b) { (void)Compress(codec, b, out.data(), b.size()); }));
  }
  const std::vector<Id128> hashes = HashesOf(Key().key());
  auto clean = [] { Must(DeleteImage(g_dir + "/bench")); };
  struct Row {
    const char* what;
    Dump dump;
  };
  Row rows[] = {{"one pack", {Compression::kNone, 1}},
                {"several packs", {Compression::kNone, 0}},
                {"one pack, hashes given", {Compression::kNone, 1, hashes}},
                {"several packs, hashes given", {Compression::kNone, 0, hashes}},
                {"several packs, lz4", {Compression::kLz4, 0}},
                {"several packs, zstd", {Compression::kZstd, 0}},
                {"several packs, auto", {Compression::kAuto, 0}}};
  for (Row& row : rows) {
    Measure(
        row.what, rounds, [&] { row.dump(); }, clean);
    fmt::print("    {} packs, {} MiB\n", row.dump.files, row.dump.stored >> 20);
  }
  return 0;
}

}  // namespace
}  // namespace stasis::store

int main(int argc, char** argv) { return stasis::store::Run(argc, argv); }
