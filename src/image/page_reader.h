// The files of an image that are made of pages, wherever those are: compared, or made anew. For one
// thread; it has threads of its own. The ImageReader must outlive it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/page_jobs.h"
#include "image/page_pack.h"
#include "image/parallel.h"
#include "image/reader.h"

namespace stasis::image {

class PageReader {
 public:
  // Opens the packs and looks up every page in their indexes. Fails with the first that is not
  // there, or is another than the manifest says; with `findings` that goes there, and the rest is
  // looked at.
  static Result<PageReader> Open(const ImageReader& image,
                                 std::vector<Finding>* findings = nullptr);

  // As they are stored, each once.
  uint64_t stored_bytes() const { return stored_bytes_; }
  // Reads and compares all pages; what is not what it was goes to `findings`. Fails only with
  // kCancelled.
  Status Check(const Progress& progress, std::vector<Finding>& findings) const;
  // Makes the files new in a folder, by their names without "cpu/", mode 0600, every page compared
  // before it is copied there. Room for them is taken first. Does not sync.
  Status MakeFiles(int folder_fd, const Progress& progress) const;

 private:
  struct OpenedPack {
    std::string path;
    std::optional<PagePackReader> reader;
  };
  explicit PageReader(const Manifest& manifest) : manifest_(&manifest) {}
  void PlanJobs(std::vector<Finding>& findings);
  Status RunJob(size_t job, std::span<char* const> outputs) const;

  const Manifest* manifest_;
  std::vector<OpenedPack> packs_;  // one a pack of the manifest; no reader for those of blocks
  std::optional<PageJobs> jobs_;
  uint64_t stored_bytes_ = 0;
};

}  // namespace stasis::image
