// Reads the units of an image from its packs and checks each: memory of GPUs, CRIU's files of
// pages, or both. Use it from one thread; it has threads of its own. The ImageReader must outlive
// it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/result.h"
#include "store/image_reader.h"
#include "store/pack.h"
#include "store/unit_jobs.h"

namespace stasis::store {

class UnitReader {
 public:
  // What is read. Output i of UnitJobs is range `ranges[i]` of the manifest, or, after these, a
  // page file.
  struct Selection {
    std::vector<size_t> ranges;
    bool page_files = false;
    // Zero units are written to the outputs too, and everything is read in the outputs' order.
    bool zeros = false;
  };
  static Selection All(const Manifest& manifest);

  // Opens the packs and looks up every unit in their indexes. Fails with the first pack that is
  // missing, not the recorded one, or without the units needed. With `findings` such packs are
  // added there instead, and the object may only be used to Check the rest.
  static Result<UnitReader> Open(const ImageReader& image, Selection selection,
                                 std::vector<Finding>* findings = nullptr);

  // The bytes of the selected units as they are stored, each unit once.
  uint64_t stored_bytes() const { return stored_bytes_; }
  // Reads and checks all units and adds the damaged ones to `findings`. Fails only with kCancelled.
  Status Check(const Progress& progress, std::vector<Finding>& findings) const;
  // Reads all units to the outputs, which are as large as their ranges and files, and calls
  // `placed`, on several threads at once, for each part that has been read and checked. Fails with
  // the first error of a unit or of `placed`.
  Status Read(std::span<char* const> outputs, const UnitJobs::Placed& placed,
              const Progress& progress) const;
  // Creates the page files in a folder, by their names without "cpu/", mode 0600. Reserves space
  // for them first. Does not sync.
  Status MakeFiles(int folder_fd, const Progress& progress) const;

 private:
  struct OpenedPack {
    std::string path;
    std::optional<PackReader> reader;
  };
  // Where a sequence of units comes from and what it is called.
  struct Source {
    std::string name;
    uint64_t address;  // of a range; 0 for a file
    uint64_t size_bytes;
    uint32_t unit_bytes;
    const std::vector<UnitRun>* runs;
  };
  UnitReader(const Manifest& manifest, Selection selection);
  Status OpenPacks(const ImageReader& image, std::vector<Finding>* findings);
  void PlanJobs(std::vector<Finding>& findings);
  Status RunJob(size_t job, std::span<char* const> outputs, const UnitJobs::Placed& placed) const;

  const Manifest* manifest_;
  Selection selection_;
  std::vector<Source> sources_;
  std::vector<OpenedPack> packs_;  // one for each of the manifest; no reader for those not needed
  std::optional<UnitJobs> jobs_;
  uint64_t stored_bytes_ = 0;
};

}  // namespace stasis::store
