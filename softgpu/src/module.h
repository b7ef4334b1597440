// Modules: images built by softgpu_kernel_image() and loaded through a memfd.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base.h"
#include "softgpu/image.h"

namespace softgpu {

struct Context;
struct Memory;
struct Module;

// A kernel of a module. The address of this structure serves as CUfunction and CUkernel.
struct Function {
  Module* module = nullptr;
  const Kernel* kernel = nullptr;
  std::string name;
  std::vector<uint32_t> parameter_sizes;
  uint32_t flags = 0;
  int max_dynamic_shared = 48 * 1024;
};

struct Global {
  std::string name;
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// A context's copy of an image. The address of this structure serves as CUmodule and CUlibrary.
struct Module {
  Context* context = nullptr;
  void* library = nullptr;  // handle of dlopen
  const Image* image = nullptr;
  Memory* globals_memory = nullptr;
  std::vector<std::unique_ptr<Function>> functions;
  std::vector<Global> globals;

  ~Module();
};

// All functions below require driver().mutex.
Function* FindFunction(CUfunction handle);
void UnloadModules(Context* context);

}  // namespace softgpu
