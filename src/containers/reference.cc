#include "containers/reference.h"

#include <fmt/format.h>

#include <cstdlib>

namespace stasis::containers {
namespace {

constexpr std::string_view kNames[] = {"podman", "containerd", "runc"};
constexpr char kForms[] =
    "a container is podman:NAME, containerd:[NAMESPACE/]ID or runc:ID; `stasis ps --containers` "
    "lists them";
constexpr size_t kMaxNameBytes = 512;
constexpr char kUsualSocket[] = "/run/containerd/containerd.sock";

tl::unexpected<Error> FailReference(std::string message) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, std::move(message), kForms);
}

// The characters of container names, ids and image names. A name never begins with '-', which the
// runtime would take for an option.
bool IsName(std::string_view name, std::string_view more) {
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '-') return false;
  for (const char c : name) {
    const bool usual = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!usual && more.find(c) == more.npos) return false;
  }
  return true;
}

}  // namespace

std::string_view RuntimeName(Runtime runtime) { return kNames[static_cast<size_t>(runtime)]; }

Result<Runtime> ParseRuntime(const std::string& name) {
  for (const Runtime runtime : kRuntimes) {
    if (name == RuntimeName(runtime)) return runtime;
  }
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              fmt::format("'{}' is not a container runtime that Stasis knows", name.substr(0, 64)),
              fmt::format("it is one of {}", fmt::join(kNames, ", ")));
}

std::string Reference::ToString() const {
  const bool named = runtime == Runtime::kContainerd && containerd_namespace != kDefaultNamespace;
  return fmt::format("{}:{}{}", RuntimeName(runtime), named ? containerd_namespace + "/" : "",
                     name);
}

bool IsReference(std::string_view text) {
  for (const std::string_view name : kNames) {
    if (text.starts_with(name) && text.substr(name.size()).starts_with(':')) return true;
  }
  return false;
}

Result<Reference> ParseReference(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == text.npos) return FailReference("'" + text.substr(0, 64) + "' is not a container");
  Reference reference;
  STASIS_ASSIGN(reference.runtime, ParseRuntime(text.substr(0, colon)));
  reference.name = text.substr(colon + 1);
  if (reference.runtime == Runtime::kContainerd) {
    const size_t slash = reference.name.find('/');
    reference.containerd_namespace =
        slash == text.npos ? kDefaultNamespace : reference.name.substr(0, slash);
    if (slash != text.npos) reference.name.erase(0, slash + 1);
    if (!IsName(reference.containerd_namespace, "._-")) {
      return FailReference("'" + text + "' has no valid namespace");
    }
  }
  const bool containerd = reference.runtime == Runtime::kContainerd;
  if (!IsName(reference.name, containerd ? "._-:/@+" : "._-+")) {
    return FailReference("'" + text + "' has no valid name after its colon");
  }
  return reference;
}

std::string ContainerdSocket(const Places& places) {
  if (!places.containerd_address.empty()) return places.containerd_address;
  const char* chosen = std::getenv("CONTAINERD_ADDRESS");
  return chosen != nullptr && *chosen != '\0' ? chosen : kUsualSocket;
}

std::vector<std::string> CommandOf(const Reference& reference, const Places& places) {
  switch (reference.runtime) {
    case Runtime::kPodman:
      return {"podman"};
    case Runtime::kContainerd: {
      std::vector<std::string> command = {"ctr"};
      if (!places.containerd_address.empty()) {
        command.insert(command.end(), {"--address", places.containerd_address});
      }
      command.insert(command.end(), {"--namespace", reference.containerd_namespace});
      return command;
    }
    case Runtime::kRunc:
      if (places.runc_root.empty()) return {"runc"};
      return {"runc", "--root", places.runc_root};
  }
  return {};
}

}  // namespace stasis::containers
