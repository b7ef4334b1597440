#include "base/install_layout.h"

#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace stasis {

Result<std::string> InstallRoot() {
  STASIS_ASSIGN(std::string exe, ReadLink("/proc/self/exe"));
  const std::filesystem::path folder = std::filesystem::path(exe).parent_path();
  return folder.parent_path().string();
}

Result<std::string> LibexecProgram(const std::string& name) {
  STASIS_ASSIGN(std::string root, InstallRoot());
  std::string path = root + "/libexec/" + name;
  if (::access(path.c_str(), X_OK) != 0) {
    return Fail(Code::kNotFound, "the program " + path + " is missing",
                "the installation is incomplete: unpack or build it again");
  }
  return path;
}

}  // namespace stasis
