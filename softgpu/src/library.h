// Libraries: images that are loaded into each context when a kernel of theirs is used there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base.h"
#include "module.h"

namespace softgpu {

struct Library;

// Its address is the CUkernel, which launches also take for a CUfunction.
struct LibraryKernel {
  Library* library = nullptr;
  std::string name;
};

// From module.cc, all under driver().mutex but the first two.
CUresult CopyImage(const void* image, std::vector<char>* out);
CUresult LoadImageFile(const char* path, std::vector<char>* out);
CUresult LoadModule(Context* context, const std::vector<char>& image, Module** out);
Function* FindFunctionByName(Module* module, const char* name);

// A CUfunction, or a CUkernel in the current context.
CUresult ResolveFunction(CUfunction handle, Function** out);
void ForgetLibraries(Context* context);

}  // namespace softgpu
