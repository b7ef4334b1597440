// forge IMAGE [--key FILE | --keep-mac] [--needs FILE] [--pid PID] [--zeros BYTES] [--pages BYTES]
// [UID]: makes an image consistent after its files were changed, like a careful forger: computes
// every checksum again and puts the manifest in a new envelope. UID makes the manifest name that
// user, and --needs makes it list FILE as mapped. --pid gives that number to its first process,
// --zeros adds empty GPU memory, and --pages an empty file of CPU memory.
// The manifest gets an origin MAC from the secret in FILE, keeps its old one, or has none. Prints
// nothing.
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/checksum.h"
#include "base/file.h"
#include "store/envelope.h"
#include "store/file_check.h"
#include "store/manifest_check.h"
#include "store/manifest_codec.h"

namespace {

using namespace stasis;  // NOLINT

struct Options {
  std::string image;
  std::string key;
  bool keep_mac = false;
  const char* needs = nullptr;
  const char* pid = nullptr;
  uint64_t zeros = 0;
  uint64_t pages = 0;
  const char* uid = nullptr;
};

Result<std::optional<store::OriginKey>> ReadKey(const std::string& path) {
  if (path.empty()) return std::nullopt;
  STASIS_ASSIGN(std::string bytes, ReadFile(path));
  BlockSecret secret{};
  if (bytes.size() != secret.size()) return Fail(Code::kInvalidArgument, path + " is no secret");
  std::memcpy(secret.data(), bytes.data(), secret.size());
  return store::OriginKey(secret);
}

std::vector<store::UnitRun> Zeros(uint64_t units) {
  return {{store::UnitRun::kZeros, 0, static_cast<uint32_t>(units)}};
}

Status Forge(const Options& options) {
  const std::string path = options.image + "/manifest.pb";
  STASIS_ASSIGN(auto key, ReadKey(options.key));
  STASIS_ASSIGN(std::string old, ReadFile(path));
  STASIS_ASSIGN(auto body, store::OpenEnvelope(old, options.image));
  STASIS_ASSIGN(store::Manifest manifest, store::DecodeManifest(body));
  if (options.uid != nullptr) manifest.job.uid = static_cast<uint32_t>(std::atoi(options.uid));
  if (options.needs != nullptr) manifest.required_files.push_back({options.needs, 1, ""});
  if (options.pid != nullptr) manifest.processes.at(0).namespace_pid = std::atoi(options.pid);
  if (options.zeros > 0) {
    store::DeviceRange range = manifest.ranges.at(0);
    range.address = 0x100000000000;
    range.size_bytes = options.zeros;
    range.block_bytes = kBlockBytes;
    range.runs = Zeros(options.zeros / kBlockBytes);
    manifest.ranges.push_back(range);
  }
  if (options.pages > 0) {
    manifest.page_files.push_back(
        {"cpu/pages-1.img", options.pages, Zeros(options.pages / store::kPageBytes)});
  }
  STASIS_ASSIGN(UniqueFd folder, Open(options.image, O_RDONLY | O_DIRECTORY));
  std::vector<store::ChecksumJob> jobs;
  for (const auto& file : manifest.files) jobs.push_back({{file.path, file.size_bytes, {}}, {}});
  STASIS_TRY(store::ComputeChecksums(folder.get(), manifest.chunk_bytes, jobs,
                                     store::Writeback::kNone, nullptr));
  for (size_t i = 0; i < jobs.size(); ++i) manifest.files[i] = std::move(jobs[i].file);
  STASIS_ASSIGN(std::string text, store::EncodeManifest(manifest));
  // To keep a MAC, the file first gets a dummy one of the same length.
  const store::OriginKey any{BlockSecret{}};
  std::string file = store::SealEnvelope(text, store::FeaturesOf(manifest),
                                         options.keep_mac ? &any
                                         : key            ? &*key
                                                          : nullptr);
  if (options.keep_mac) {
    constexpr size_t kEnd = store::kOriginBytes + Id128::kBytes;
    file.replace(file.size() - kEnd, store::kOriginBytes, old, old.size() - kEnd,
                 store::kOriginBytes);
    file.resize(file.size() - Id128::kBytes);
    file += Checksum(file).View();
  }
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << file;
  return out.flush() ? Status() : Status(Fail(Code::kInternal, "write " + path));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  Options options{argv[1]};
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--keep-mac") {
      options.keep_mac = true;
    } else if (word == "--key" && i + 1 < argc) {
      options.key = argv[++i];
    } else if (word == "--needs" && i + 1 < argc) {
      options.needs = argv[++i];
    } else if (word == "--pid" && i + 1 < argc) {
      options.pid = argv[++i];
    } else if (word == "--zeros" && i + 1 < argc) {
      options.zeros = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--pages" && i + 1 < argc) {
      options.pages = std::strtoull(argv[++i], nullptr, 10);
    } else {
      options.uid = argv[i];
    }
  }
  Status done = Forge(options);
  if (!done) std::fprintf(stderr, "%s\n", done.error().ToString().c_str());
  return done ? 0 : 1;
}
