// The name of a container as a TARGET: `podman:NAME`, `containerd:[NAMESPACE/]ID`, `runc:ID`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stasis::containers {

enum class Runtime : uint8_t { kPodman, kContainerd, kRunc };
inline constexpr Runtime kRuntimes[] = {Runtime::kPodman, Runtime::kContainerd, Runtime::kRunc};

// Returns "podman", "containerd" or "runc".
std::string_view RuntimeName(Runtime runtime);
// Returns a usage error if there is no such runtime.
Result<Runtime> ParseRuntime(const std::string& name);

inline constexpr char kDefaultNamespace[] = "default";

struct Reference {
  Runtime runtime = Runtime::kPodman;
  std::string name;                  // a name or an id, in the form that the runtime accepts
  std::string containerd_namespace;  // for containerd, never empty; otherwise empty

  // Returns the TARGET. containerd's default namespace is left out.
  std::string ToString() const;
  bool operator==(const Reference&) const = default;
};

// Returns true if the text begins with a word and a colon. Names of jobs have no colon.
bool IsReference(std::string_view text);
// Returns a usage error if the text is not a valid reference.
Result<Reference> ParseReference(const std::string& text);

// The state folder and socket of runtimes, if they are not the default ones.
struct Places {
  std::string runc_root;           // --root of runc
  std::string containerd_address;  // the socket of containerd
};

// Returns the path of containerd's socket: from `places`, otherwise from CONTAINERD_ADDRESS,
// otherwise the default path.
std::string ContainerdSocket(const Places& places);

// Returns the beginning of a command for the runtime: `podman`, `runc --root R`, `ctr -a A -n NS`.
std::vector<std::string> CommandOf(const Reference& reference, const Places& places);

}  // namespace stasis::containers
