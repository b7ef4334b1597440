// Checkpoints and restores containers by the runtimes' own commands. CRIU's plugin saves and
// restores the GPU state (docs/containers.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "containers/runtime.h"

namespace stasis::containers {

// Options that the runtimes share.
struct CriuChoices {
  bool tcp_keep = false;
  bool file_locks = false;
};

struct CheckpointRequest {
  Container container;
  Places places;
  CriuChoices criu;
  bool leave_running = false;
  // podman: the archive; empty: podman's own storage. runc: the folder, which must not exist yet.
  // containerd: the name of the image, in its namespace.
  std::string image;
  std::string compress;  // of podman's archive: "none" or "zstd"
};

// Returns the command that checkpoints the container. Returns kUnimplemented if the runtime has no
// command for the request.
Result<std::vector<std::string>> CheckpointCommand(const CheckpointRequest& request);
// Runs that command. If runc fails, deletes its incomplete image, except after kDeadlineExceeded,
// which leaves the state of the container unknown.
Status Checkpoint(CommandRunner& runner, const CheckpointRequest& request,
                  const Deadline& deadline);

// A checkpoint of runc is a folder, with data for the restore beside CRIU's files:
//
//   FOLDER/container.json   this structure
//   FOLDER/checkpoint/      CRIU's images, and GPU data
struct RuncImage {
  std::string id;
  std::string bundle;  // the container's bundle; its root file system is not in the image
  std::string root;    // --root of runc; empty: the usual one
  int64_t time_ms = 0;
};
inline constexpr char kRuncImageFile[] = "container.json";
// The folder of CRIU's images. podman uses the same name in the container's own folder.
inline constexpr char kCriuFolder[] = "/checkpoint";
// Returns kNotFound if the folder is not a checkpoint of runc as described above.
Result<RuncImage> ReadRuncImage(const std::string& folder);
// Returns the path of the latest checkpoint of container `id` below `folder`, or kNotFound if there
// is none.
Result<std::string> LatestRuncImage(const std::string& folder, const std::string& id);

struct RestoreRequest {
  Reference reference;  // podman: the container; containerd: namespace and name of the image
  Places places;
  CriuChoices criu;
  std::string archive;     // podman: an exported archive; empty: the container's own checkpoint
  std::string runc_image;  // runc: the folder
  std::string new_name;    // name of the restored container; empty: the name as before
  std::string output;      // runc: file for the container's output; empty: none
  std::string gpu_map;     // OLD=NEW,…; not for containerd
};

// Returns the environment variables "NAME=VALUE" that pass the GPU map to CRIU's plugin.
std::vector<std::string> GpuMapVariables(const RestoreRequest& request);

struct Restored {
  Reference reference;  // of the restored container
  pid_t pid = 0;        // of its init process; 0 if it has ended already
};

Result<std::vector<std::string>> RestoreCommand(const RestoreRequest& request);
Result<Restored> Restore(CommandRunner& runner, const RestoreRequest& request,
                         const Deadline& deadline);

// Returns the cause of a failure from CRIU's log: the last error line of Stasis's plugin, or CRIU's
// first error line if the plugin wrote none or only that CRIU failed. Returns an empty string if
// there is no error line.
std::string ReasonInCriuLog(const std::string& log);

}  // namespace stasis::containers
