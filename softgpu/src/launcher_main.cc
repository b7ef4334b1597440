// softgpu [--devices N] [--memory SIZE] [--dir DIR] [--fault SPEC] -- CMD ARG… runs a command on
// software GPUs: the libcuda.so.1 of this installation is found before any other.

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

namespace {

constexpr char kUsage[] =
    "usage: softgpu [--devices N] [--memory SIZE] [--dir DIR] [--fault SPEC] -- CMD ARG...\n"
    "  --devices N     number of GPUs (1)\n"
    "  --memory SIZE   memory of each GPU, such as 8G (8G)\n"
    "  --dir DIR       programs with the same DIR share GPUs (/tmp/softgpu-UID)\n"
    "  --fault SPEC    makes calls fail, such as cuMemAlloc_v2:5=fail(2)\n"
    "The first program sets the number and memory of the GPUs; later ones get the same.\n";

struct Option {
  const char* name;
  const char* variable;
};
constexpr Option kOptions[] = {{"devices", "SOFTGPU_DEVICES"},
                               {"memory", "SOFTGPU_MEMORY"},
                               {"dir", "SOFTGPU_DIR"},
                               {"fault", "SOFTGPU_FAULT"}};

// Returns the directory of libcuda.so.1, in the build tree or an installation.
std::string LibraryFolder() {
  char self[PATH_MAX];
  if (realpath("/proc/self/exe", self) == nullptr) return "";
  *strrchr(self, '/') = 0;
  char folder[PATH_MAX];
  std::string path = std::string(self) + "/../lib/softgpu";
  return realpath(path.c_str(), folder) != nullptr ? folder : "";
}

}  // namespace

int main(int argc, char** argv) {
  option options[std::size(kOptions) + 2] = {};
  for (size_t i = 0; i < std::size(kOptions); ++i) {
    options[i] = {kOptions[i].name, required_argument, nullptr, int(i)};
  }
  options[std::size(kOptions)] = {"help", no_argument, nullptr, 'h'};
  for (int chosen; (chosen = getopt_long(argc, argv, "+h", options, nullptr)) != -1;) {
    if (chosen == 'h') {
      fputs(kUsage, stdout);
      return 0;
    }
    if (chosen >= int(std::size(kOptions))) {
      fputs(kUsage, stderr);
      return 2;
    }
    setenv(kOptions[chosen].variable, optarg, 1);
  }
  if (optind >= argc) {
    fputs(kUsage, stderr);
    return 2;
  }
  std::string folder = LibraryFolder();
  if (access((folder + "/libcuda.so.1").c_str(), R_OK) != 0) {
    fprintf(stderr, "softgpu: its libcuda.so.1 is not in ../lib/softgpu beside this program\n");
    return 5;
  }
  const char* before = getenv("LD_LIBRARY_PATH");
  std::string path = before != nullptr && *before != 0 ? folder + ":" + before : folder;
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  execvp(argv[optind], argv + optind);
  fprintf(stderr, "softgpu: cannot run %s: %s\n", argv[optind], strerror(errno));
  return 127;
}
