// verify_flips IMAGE: reads lines `OFFSET BIT FILE` from stdin, with FILE relative to the image.
// For each line, flips that bit, verifies the image in this process like `stasis image verify`, and
// flips the bit back. Prints every flip that was not detected in FILE; exit code 1 if there was
// any.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/fd.h"
#include "store/image_reader.h"

using stasis::store::Finding;
using stasis::store::ImageReader;
using stasis::store::VerifyLevel;

namespace {

bool Flip(const std::string& path, off_t offset, int bit) {
  stasis::UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  unsigned char byte = 0;
  if (!file || ::pread(file.get(), &byte, 1, offset) != 1) return false;
  byte = static_cast<unsigned char>(byte ^ (1u << bit));
  return ::pwrite(file.get(), &byte, 1, offset) == 1;
}

// Returns an empty string if verification finds the damage in `file` and nothing else; otherwise
// the reason.
std::string Missed(const std::string& image, const std::string& file) {
  auto reader = ImageReader::Open(image);
  if (!reader) return "the image does not open: " + reader.error().ToString();
  auto report = (*reader)->Verify(VerifyLevel::kFull);
  if (!report) return "verify fails: " + report.error().ToString();
  if (report->findings.empty()) return "nothing was found";
  auto elsewhere = std::find_if(report->findings.begin(), report->findings.end(),
                                [&](const Finding& finding) { return finding.path != file; });
  if (elsewhere != report->findings.end()) return "another file is named: " + elsewhere->path;
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string image = argv[1];
  int flips = 0, missed = 0;
  long long offset = 0;
  int bit = 0;
  for (std::string file; std::cin >> offset >> bit && std::getline(std::cin >> std::ws, file);) {
    const std::string path = image + "/" + file;
    if (!Flip(path, offset, bit)) {
      std::perror(path.c_str());
      return 2;
    }
    const std::string problem = Missed(image, file);
    if (!Flip(path, offset, bit)) {
      std::perror(path.c_str());
      return 2;
    }
    ++flips;
    if (problem.empty()) continue;
    ++missed;
    std::printf("%s byte %lld bit %d: %s\n", file.c_str(), offset, bit, problem.c_str());
  }
  std::printf("%d flips, %d missed\n", flips, missed);
  return missed == 0 ? 0 : 1;
}
