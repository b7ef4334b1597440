// CRIU's files where CRIU reads them at a restore. Those that an image holds as pages are made of
// them, beside copies of the others, in a hidden folder of ours: in memory if there is room, else
// on a disk, our own or the image's.
//
//   PLACE/.NAME.cpu-HEX      image/image_folder.h; whoever makes and uses it holds its lock
#pragma once

#include <string>

#include "base/fd.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"
#include "store/image_reader.h"

namespace stasis::checkpoint {

// Whether an image's files have to be made: some are not in it.
bool NeedsCpuFiles(const store::Manifest& manifest);

// A folder of mode 0700, and the lock without which it is nobody's.
struct CpuFiles {
  std::string folder;
  UniqueFd lock;
};

// Makes them; every page is compared with its checksum. `owner` is the process that runs the
// operation; its work folder exists, and where the files are is written there before they are made.
// kResourceExhausted says what each place has and what is needed.
Result<CpuFiles> MakeCpuFiles(const store::ImageReader& image, const Paths& paths,
                              const process::ProcessId& owner, bool ignore_memory,
                              const Progress& progress);

// Removes them, also those of an operation that was killed. Success when there are none.
Status RemoveCpuFiles(const Paths& paths, const process::ProcessId& owner);

// Removes those on our own disk that are nobody's any more: after a power cut nothing says where
// they are. Those beside an image go with what else is swept there (store/store_folder.h), and when
// the next restore makes some.
void SweepCpuFiles(const Paths& paths);

}  // namespace stasis::checkpoint
