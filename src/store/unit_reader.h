// Reads the units of an image from its packs and checks each of them: GPU memory, CRIU's files of
// pages, or both. Use it from one thread; it starts its own threads. The ImageReader must outlive
// it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/result.h"
#include "store/image_reader.h"
#include "store/pack.h"
#include "store/unit_jobs.h"

namespace stasis::store {

class UnitReader {
 public:
  // Selects what is read. Output i of UnitJobs is range `ranges[i]` of the manifest; the outputs of
  // the page files follow.
  struct Selection {
    std::vector<size_t> ranges;
    bool page_files = false;
    // If set, zero units are written to the outputs too, and units are read in the order of the
    // outputs instead of the packs.
    bool zeros = false;
    // If set, these sequences of pages are read instead of the manifest's page files.
    std::optional<std::vector<PageFile>> files = {};
  };
  static Selection All(const Manifest& manifest);

  // Opens the packs and looks up every unit in their indexes. A pack is invalid if it is missing,
  // is not the recorded one or lacks a needed unit. Fails at the first invalid pack. If `findings`
  // is set, reports invalid packs there instead; then only Check may be called, for the other
  // packs.
  static Result<UnitReader> Open(const ImageReader& image, Selection selection,
                                 std::vector<Finding>* findings = nullptr);

  // The stored size of the selected units in bytes, each unit counted once.
  uint64_t stored_bytes() const { return stored_bytes_; }
  // Reads and checks all units and adds the damaged ones to `findings`. Fails only with kCancelled.
  Status Check(const Progress& progress, std::vector<Finding>& findings) const;
  // Reads all units into the outputs, which must be as large as their ranges and files. Calls
  // `placed` from several threads for each part that was read and checked. Fails with the first
  // error of a unit or of `placed`.
  Status Read(std::span<char* const> outputs, const UnitJobs::Placed& placed,
              const Progress& progress) const;
  // Reads and checks all units, on up to `threads` threads, for outputs that are not memory of this
  // process. Calls `taken` from these threads with the bytes of each part, after they were checked.
  // The bytes are valid during the call. Fails with the first error of a unit or of `taken`.
  using Taken = std::function<Status(const UnitJobs::Place& place, std::string_view data)>;
  Status Deliver(const Taken& taken, const Progress& progress, unsigned threads) const;
  // The next three functions are for a caller that copies the units to where they belong and checks
  // them there. It calls ReadItem for each work item, from any thread, and then CheckNames.
  size_t items() const { return jobs_->size(); }
  // See UnitJobs::Read.
  Status ReadItem(size_t item, char* buffer, std::vector<UnitJobs::Part>& parts) const;
  // Compares the names of all units of the selected ranges, in order, with those in the packs. A
  // zero unit has no name: it is zero. Returns kDataLoss with the first unit that differs.
  Status CheckNames(std::span<const Id128> names) const;
  // Creates the page files in a folder, with mode 0600 and their names without "cpu/". Reserves
  // space for them first. Does not sync them.
  Status MakeFiles(int folder_fd, const Progress& progress) const;

 private:
  struct OpenedPack {
    std::string path;
    std::optional<PackReader> reader;
  };
  // A range or page file that is read.
  struct Source {
    std::string name;
    uint64_t address;  // of a range; 0 for a file
    uint64_t size_bytes;
    uint32_t unit_bytes;
    const std::vector<UnitRun>* runs;
    std::vector<uint64_t> offsets = {};  // of the runs, for Deliver
  };
  UnitReader(const Manifest& manifest, Selection selection);
  const std::vector<PageFile>& page_files() const {
    return selection_.files ? *selection_.files : manifest_->page_files;
  }
  Status OpenPacks(const ImageReader& image, std::vector<Finding>* findings);
  void PlanJobs(std::vector<Finding>& findings);
  std::vector<const PackReader*> Readers() const;  // one for each of packs_
  Status Locate(Status status, uint32_t pack, const UnitJobs::UnitPlace& where) const;
  Status ExplainWrongUnit(uint32_t pack, const UnitJobs::UnitPlace& where) const;
  // Checks the units that belong at an offset of an output. Sets `where` to the damaged one.
  Status CheckUnits(UnitJobs::UnitPlace& where, std::string_view data) const;
  Status DeliverJob(size_t job, const Taken& taken) const;
  Status RunJob(size_t job, std::span<char* const> outputs, const UnitJobs::Placed& placed) const;

  const Manifest* manifest_;
  Selection selection_;
  std::vector<Source> sources_;
  std::vector<OpenedPack> packs_;  // one for each pack in the manifest; no reader if not needed
  std::optional<UnitJobs> jobs_;
  uint64_t stored_bytes_ = 0;
};

}  // namespace stasis::store
