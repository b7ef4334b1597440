// Symbol look-ups under the agent: found symbols, missing symbols, and dlerror(). Prints
// EXIT-SUCCESS at the end. Does not link the driver.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("line %d: check failed: %s\n", __LINE__, #condition); \
      exit(1);                                                     \
    }                                                              \
  } while (0)

// The first version of glibc on this processor.
#if defined(__aarch64__)
static const char kOldest[] = "GLIBC_2.17";
#else
static const char kOldest[] = "GLIBC_2.2.5";
#endif

static const char* Home(void* address) {
  Dl_info info;
  return address != NULL && dladdr(address, &info) != 0 ? info.dli_fname : "";
}
static int IsAgents(void* address) { return strstr(Home(address), "stasis-agent") != NULL; }

int main(void) {
  // No driver is loaded yet, so a look-up must fail.
  dlerror();
  EXPECT(dlsym(RTLD_DEFAULT, "cuInit") == NULL);
  EXPECT(dlerror() != NULL);
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
  EXPECT(strstr(dlerror(), "cuMemAlloc_v2") != NULL);
  EXPECT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
  dlerror();

  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  EXPECT(driver != NULL);
  dlerror();
  EXPECT(IsAgents(dlsym(driver, "cuMemAlloc_v2")));
  EXPECT(dlerror() == NULL);
  EXPECT(IsAgents(dlsym(driver, "cuGetProcAddress_v2")));
  EXPECT(IsAgents(dlsym(driver, "cuLaunchKernel_ptsz")));
  EXPECT(!IsAgents(dlsym(driver, "cuStreamGetFlags")));
  EXPECT(dlsym(driver, "cuStreamGetFlags") != NULL);
  EXPECT(dlsym(driver, "cuNoSuchFunction") == NULL);
  EXPECT(strstr(dlerror(), "cuNoSuchFunction") != NULL);
  EXPECT(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);  // because it was loaded with RTLD_LOCAL

  // Versions, and the per-thread default stream.
  int (*ask)(const char*, void**, int, unsigned long long) = NULL;
  *(void**)&ask = dlsym(driver, "cuGetProcAddress");
  void *legacy = NULL, *own = NULL, *wait = NULL, *missing = NULL;
  EXPECT(ask("cuMemcpyHtoD", &legacy, 12000, 1) == 0 && IsAgents(legacy));
  EXPECT(ask("cuMemcpyHtoD", &own, 12000, 2) == 0 && IsAgents(own));
  EXPECT(legacy == dlsym(driver, "cuMemcpyHtoD_v2"));
  EXPECT(own == dlsym(driver, "cuMemcpyHtoD_v2_ptds"));
  EXPECT(ask("cuStreamGetFlags", &wait, 12000, 0) == 0 && !IsAgents(wait));
  EXPECT(ask("cuNoSuchFunction", &missing, 12000, 0) != 0);

  // Symbols that the agent does not handle are found as usual, relative to the right caller.
  EXPECT(dlsym(RTLD_NEXT, "malloc") == (void*)malloc || dlsym(RTLD_NEXT, "malloc") != NULL);
  EXPECT(strstr(Home(dlsym(RTLD_NEXT, "malloc")), "libc.so") != NULL);
  EXPECT(dlvsym(RTLD_DEFAULT, "malloc", kOldest) != NULL);
  EXPECT(dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_9.9") == NULL);
  EXPECT(IsAgents(dlsym(RTLD_DEFAULT, "dlsym")));
  puts("EXIT-SUCCESS");
  return 0;
}
