// Test helpers: a store in a temporary folder, and a small image in it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "store/image_writer.h"
#include "store/manifest.h"

namespace stasis::store::testing {

// A temporary folder, removed with the object.
class TempStore {
 public:
  TempStore() {
    char name[] = "/tmp/stasis-image-test.XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempStore() { (void)RemoveTree(path_); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Returns a manifest in which every field is set.
inline Manifest FullManifest() {
  Manifest m;
  m.host = HostNow();
  m.host.pid_namespace = 4026531836;
  m.software = {"0.1.0", "4.2.1", "580.159.04", "softgpu"};
  m.job = {"llama", {"./counter", "--port", "\xff\x01"}, 4711, "/srv", 1000, 1001, true, true};
  m.processes = {
      {4711,
       1,
       123,
       "counter",
       "/srv/counter",
       GpuState::kRunning,
       {"GPU-1"},
       77,
       4711,
       4711,
       4711,
       {"GPU-2", "GPU-1"}},
      {4712, 4711, 124, "helper", "/srv/helper", GpuState::kNone, {}, 0, 4712, 4711, 4711}};
  m.gpus = {{"GPU-1", "softgpu", 8ull << 30, 1ull << 30}};
  m.externals = {{"tty[1b:2]", "tty", 4711, 0, "both", "/dev/pts/2"}};
  m.criu = {"close", true, true, true, {"ghost-limit=1M"}};
  m.phases = {{"lock", 0, 0.01, 0, ""}, {"criu dump", 0.01, 1.5, 4096, "carry"}};
  m.required_files = {{"/lib/libc.so.6", 1922136, "\x01\x02"}};
  return m;
}

inline void WriteFile(const std::string& path, std::string_view data) {
  auto fd = Open(path, O_WRONLY | O_CREAT | O_TRUNC);
  ASSERT_TRUE(fd) << fd.error().ToString();
  ASSERT_TRUE(WriteAll(fd->get(), data));
}

// Returns pseudo-random bytes.
inline std::string Noise(size_t size, uint32_t seed = 1) {
  std::string data(size, '\0');
  for (char& c : data) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return data;
}

// Writes a few files to CRIU's folder, as a dump would.
inline void PretendCriuDump(const ImageWriter& writer) {
  WriteFile(writer.cpu_path() + "/inventory.img", Noise(100, 1));
  WriteFile(writer.cpu_path() + "/pages-1.img", Noise(300'000, 2));
  WriteFile(writer.cpu_path() + "/empty.img", "");
}

inline std::unique_ptr<ImageWriter> MustBegin(const std::string& store, const std::string& name) {
  auto writer = ImageWriter::Begin(store, name);
  EXPECT_TRUE(writer) << writer.error().ToString();
  return writer ? std::move(*writer) : nullptr;
}

// Writes a small complete image and returns its path.
inline std::string MakeImage(const std::string& store, const std::string& name) {
  auto writer = MustBegin(store, name);
  PretendCriuDump(*writer);
  EXPECT_TRUE(writer->AddLog("criu-dump.log", "(00.000001) hello\n"));
  Manifest manifest = FullManifest();
  auto status = writer->Commit(manifest, {});
  EXPECT_TRUE(status) << status.error().ToString();
  EXPECT_TRUE(writer->AfterCommit());
  return writer->path();
}

}  // namespace stasis::store::testing
