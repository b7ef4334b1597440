// Facts about a machine with AMD GPUs, from files that any user may read.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace stasis::conformance {

using Facts = std::vector<std::pair<std::string, std::string>>;

// Returns name and text of each fact that is found. `root` is a prefix of /proc, /sys and /etc;
// empty on a real machine.
Facts DescribeMachine(const std::string& root = {});

// Returns the paths of the render nodes, sorted.
std::vector<std::string> RenderNodes(const std::string& root = {});

}  // namespace stasis::conformance
