// CPU memory of an image that is written straight from its packs into the restored, still stopped
// processes, by several threads. CRIU gets the rest in files.
// docs/decisions/cpu-memory-from-outside.md has the reasons and the rules.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/result.h"
#include "process/memory_writer.h"
#include "process/tree.h"
#include "store/image_reader.h"
#include "store/unit_reader.h"

namespace stasis::checkpoint {

// The image must outlive this object.
class DirectPages {
 public:
  // Chooses the memory, with the rules of criu::ChooseRuns, and looks up its units in the packs.
  // Returns nothing if no memory can be written directly. The image's files must have been
  // verified.
  static Result<std::optional<DirectPages>> Choose(const store::ImageReader& image);

  // CRIU's files of pages without this memory.
  const std::vector<store::PageFile>& files() const { return files_; }
  // CRIU's page maps without this memory, by the names of their files.
  const std::map<std::string, std::string>& pagemaps() const { return pagemaps_; }
  // The size of the memory. Zeros among it need no write and no host memory.
  uint64_t bytes() const { return bytes_; }

  // Writes the memory to the processes of `tree`, which CRIU has restored and which must not run
  // yet. Checks each page before it is written. The order is undefined, so after an error the
  // memory has undefined contents. Returns kDataLoss for a damaged page or a missing process.
  Status Write(const process::ProcessTree& tree, process::MemoryWriter& writer,
               const Progress& progress) const;

 private:
  struct Run {
    pid_t pid;  // restored_pid() of the process
    uint64_t address;
  };
  DirectPages(store::UnitReader units, std::vector<Run> runs)
      : units_(std::move(units)), runs_(std::move(runs)) {}

  store::UnitReader units_;  // one output for each of runs_
  std::vector<Run> runs_;
  std::vector<store::PageFile> files_;
  std::map<std::string, std::string> pagemaps_;
  uint64_t bytes_ = 0;
};

}  // namespace stasis::checkpoint
