// The agent's library in images: CRIU insists on the very file that a program had mapped, so an
// image brings it along, and a restore puts it back when it is missing.
//
//   IMAGE/agent/BUILDID.so
#pragma once

#include "store/image_reader.h"
#include "store/image_writer.h"
#include "store/manifest.h"

namespace stasis::checkpoint {

// dump: every agent library among the manifest's required files goes into the image.
Status StoreAgentLibraries(store::ImageWriter& writer, const store::Manifest& manifest);

// restore: would PutBackAgentLibraries put this missing file back? Only at a place where `stasis
// run` puts it, and only when the image or this installation has that build.
bool CanPutBack(const store::ImageReader& reader, const store::RequiredFile& file);
// For the user, when it would not: what to do about it. Empty when it is no agent's library.
std::string PutBackHint(const store::ImageReader& reader, const store::RequiredFile& file);

// restore: puts those that are missing back. The image was verified before.
Status PutBackAgentLibraries(const store::ImageReader& reader);

// The agent that the image's program was started with; empty: none.
std::string AgentOf(const store::Manifest& manifest);

}  // namespace stasis::checkpoint
