// forge IMAGE [UID]: makes an image whole again whose files were changed, as a careful forger
// would: every checksum anew, the manifest sealed. With UID the manifest says that it is that
// user's program. Prints nothing.
#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "base/file.h"
#include "image/envelope.h"
#include "image/file_check.h"
#include "image/manifest_check.h"
#include "image/manifest_codec.h"

namespace {

using namespace stasis;  // NOLINT

Status Forge(const std::string& image, const char* uid) {
  const std::string path = image + "/manifest.pb";
  STASIS_ASSIGN(std::string old, ReadFile(path));
  STASIS_ASSIGN(auto body, image::OpenEnvelope(old, image));
  STASIS_ASSIGN(image::Manifest manifest, image::DecodeManifest(body));
  if (uid != nullptr) manifest.job.uid = static_cast<uint32_t>(std::atoi(uid));
  STASIS_ASSIGN(UniqueFd folder, Open(image, O_RDONLY | O_DIRECTORY));
  std::vector<image::ChecksumJob> jobs;
  for (const auto& file : manifest.files) jobs.push_back({{file.path, file.size_bytes, {}}, {}});
  STASIS_TRY(image::ComputeChecksums(folder.get(), manifest.chunk_bytes, jobs,
                                     image::Writeback::kNone, nullptr));
  for (size_t i = 0; i < jobs.size(); ++i) manifest.files[i] = std::move(jobs[i].file);
  STASIS_ASSIGN(std::string text, image::EncodeManifest(manifest));
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << image::SealEnvelope(text, image::FeaturesOf(manifest));
  return out.flush() ? Status() : Status(Fail(Code::kInternal, "write " + path));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return 2;
  Status done = Forge(argv[1], argc == 3 ? argv[2] : nullptr);
  if (!done) std::fprintf(stderr, "%s\n", done.error().ToString().c_str());
  return done ? 0 : 1;
}
