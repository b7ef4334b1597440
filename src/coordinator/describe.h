// What a manifest says about a program: gathered while it is stopped, looked at again before a
// restore.
#pragma once

#include "coordinator/operations.h"
#include "coordinator/survey.h"
#include "criu/stdio.h"
#include "image/manifest.h"
#include "image/reader.h"

namespace stasis::coordinator {

// Everything but files, ranges and phases.
Result<image::Manifest> DescribeTarget(Services& services, const Survey& survey,
                                       const DumpOptions& dump, const criu::StdioPlan& stdio,
                                       const std::string& criu_version);

// The refusals of a restore that need no work: this machine has not what the program needs, its
// process ids are taken (none is with `new_pidns`), its GPU is not there or is full. `map` is what
// the user asked for.
Status CheckRestorable(Services& services, const image::ImageReader& reader,
                       const device::GpuMap& map, bool new_pidns);

}  // namespace stasis::coordinator
