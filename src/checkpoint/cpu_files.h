// The folder from which CRIU reads its files during a restore. An image stores some of these files
// as pages in packs. For a restore, they are written to a hidden folder together with copies of the
// other files. The folder is in memory if there is enough space, otherwise on the disk of Stasis's
// data or of the image:
//
//   PLACE/.NAME.cpu-HEX      (store/image_folder.h) locked as long as it is used
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "base/result.h"
#include "checkpoint/direct_pages.h"
#include "process/proc.h"
#include "store/image_reader.h"

namespace stasis::checkpoint {

// Returns whether some of CRIU's files are stored as pages, so that MakeCpuFiles is needed.
bool NeedsCpuFiles(const store::Manifest& manifest);

// The folder, and the lock that protects it from a sweep.
struct CpuFiles {
  std::string folder;
  UniqueFd lock;
  // Memory that the files lack, and that must be written after CRIU's restore. `image` must outlive
  // it.
  std::optional<DirectPages> direct = {};
};

struct CpuFilesOptions {
  bool ignore_memory = false;  // use memory even if too little of it is free
  bool direct = false;         // leave out what DirectPages can write; needs verified files
};

// Writes the files to a new folder of mode 0700, and compares every page with its checksum. `owner`
// is the process that runs the operation. Its work folder must exist and gets a link to the new
// folder, so that RemoveCpuFiles finds it even if the operation is killed. The message of
// kResourceExhausted lists the free and needed bytes of each possible place.
Result<CpuFiles> MakeCpuFiles(const store::ImageReader& image, const Paths& paths,
                              const process::ProcessId& owner, const CpuFilesOptions& options,
                              const Progress& progress);

// Removes the files of an operation, which may have been killed. Succeeds if there are none.
Status RemoveCpuFiles(const Paths& paths, const process::ProcessId& owner);

// Removes abandoned folders below `paths.data`. After a power failure the link to them is lost, so
// RemoveCpuFiles cannot find them. Abandoned folders next to an image are removed by every sweep of
// the store (store/store_folder.h) and by the next restore from it.
void SweepCpuFiles(const Paths& paths);

}  // namespace stasis::checkpoint
