// The agent library in images. CRIU can restore a program only with the same file that the program
// had mapped, so an image contains the library, and a restore puts it back if it is missing.
//
//   IMAGE/agent/BUILDID.so
#pragma once

#include "base/paths.h"
#include "store/image_reader.h"
#include "store/image_writer.h"
#include "store/manifest.h"

namespace stasis::checkpoint {

// Dump: stores every agent library among the manifest's required files in the image.
Status StoreAgentLibraries(store::ImageWriter& writer, const store::Manifest& manifest);

// The sources from which a restore may take a library. A library that was put back is also loaded
// by programs that are started later, so it must not come from an image of unknown origin.
enum class AgentSource { kThisInstallation, kImageToo };
// Returns kImageToo if the caller trusts the image, or if its origin MAC shows that this
// installation wrote it.
AgentSource AgentSourceFor(const store::ImageReader& reader, const Paths& paths, bool trusted);

// Restore: returns whether PutBackAgentLibraries would put this missing file back. It does so only
// at a path where `stasis run` installs the library, and only if a permitted source has a library
// of that build.
bool CanPutBack(const store::ImageReader& reader, const store::RequiredFile& file,
                AgentSource source);
// Returns a hint for the user if CanPutBack is false. Empty if the file is not an agent library.
std::string PutBackHint(const store::ImageReader& reader, const store::RequiredFile& file);

// Restore: puts missing agent libraries back. The image must have been verified.
Status PutBackAgentLibraries(const store::ImageReader& reader, AgentSource source);

// Returns the path of the agent with which the program was started, or an empty string.
std::string AgentOf(const store::Manifest& manifest);

}  // namespace stasis::checkpoint
