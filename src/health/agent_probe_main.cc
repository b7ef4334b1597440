// stasis-agent-probe: a small program that `stasis check` starts under the agent. It initialises
// the driver, reports the result, and waits for end-of-file on stdin.
//
//   stasis-agent-probe init|use [LIBRARY]
//
// Prints "CUDA error N\n", where N is the driver's last result (0: success), or "no CUDA driver\n".
// `use` also creates a context on the first GPU, which takes half a GiB of its memory. The agent
// opens its socket only in a program that has a context.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

namespace {

template <class Function>
Function* Find(void* library, const char* symbol) {
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, symbol));
}

}  // namespace

int main(int argc, char** argv) {
  const bool use = argc > 1 && ::strcmp(argv[1], "use") == 0;
  void* library = ::dlopen(argc > 2 ? argv[2] : "libcuda.so.1", RTLD_NOW);
  auto* init = Find<int(unsigned)>(library, "cuInit");
  auto* retain = Find<int(void**, int)>(library, "cuDevicePrimaryCtxRetain");
  if (init == nullptr || retain == nullptr) {
    ::puts("no CUDA driver");
  } else {
    void* context = nullptr;
    int result = init(0);
    if (result == 0 && use) result = retain(&context, 0);
    ::printf("CUDA error %d\n", result);
  }
  ::fflush(stdout);
  char ignored;
  while (::read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}
