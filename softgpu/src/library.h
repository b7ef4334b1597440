// Libraries: images that are loaded into a context when one of their kernels is first used there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base.h"
#include "module.h"

namespace softgpu {

struct Library;

// A kernel of a library. The address of this structure is the CUkernel, which launches accept as a
// CUfunction.
struct LibraryKernel {
  Library* library = nullptr;
  std::string name;
};

// Defined in module.cc. All but the first two require driver().mutex.
CUresult CopyImage(const void* image, std::vector<char>* out);
CUresult LoadImageFile(const char* path, std::vector<char>* out);
CUresult LoadModule(Context* context, const std::vector<char>& image, Module** out);
Function* FindFunctionByName(Module* module, const char* name);

// Resolves a CUfunction, or a CUkernel for the current context.
CUresult ResolveFunction(CUfunction handle, Function** out);
void ForgetLibraries(Context* context);

}  // namespace softgpu
