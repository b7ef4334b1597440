// The CDI device `stasis.dev/agent=on`, which adds the agent to a container. It sets LD_PRELOAD,
// and bind-mounts the folder of the agent's library, which is named by build id. CDI is the
// Container Device Interface, which podman, containerd and CRI-O read from /etc/cdi.
//
// The folder of a build is never changed or overwritten, because a checkpointed container needs the
// same file at its restore. A newer Stasis puts another folder beside it and writes a new
// specification, which only new containers use.
#pragma once

#include <string>

#include "base/result.h"

namespace stasis::containers {

inline constexpr char kCdiFolder[] = "/etc/cdi";
inline constexpr char kCdiFile[] = "stasis.json";
inline constexpr char kCdiKind[] = "stasis.dev/agent";
inline constexpr char kCdiDevice[] = "stasis.dev/agent=on";

// Returns the specification for a library HOST/agents/BUILDID/NAME. In the container its path is
// /usr/lib/stasis/agents/BUILDID/NAME.
std::string CdiSpecification(const std::string& library);
// Returns the library's path in the container.
std::string LibraryInContainer(const std::string& library);

struct CdiInstalled {
  std::string path;      // of the specification
  bool written = false;  // false if the file already had this content
};
// Writes the specification. Returns kFailedPrecondition if its file belongs to another program, or
// if another file of the folder declares the device. CDI refuses a device that two files declare.
Result<CdiInstalled> InstallCdi(const std::string& folder, const std::string& library);
// Removes the specification if Stasis wrote it. Returns false if there was none.
Result<bool> RemoveCdi(const std::string& folder);

// Returns the path on this machine of the library in the installed specification. Returns an empty
// string if there is no specification of Stasis.
Result<std::string> LibraryOfCdi(const std::string& folder);

}  // namespace stasis::containers
