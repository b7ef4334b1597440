#include "library.h"

#include "api.h"
#include "context.h"
#include "driver.h"

namespace softgpu {

struct Library {
  std::vector<char> image;
  std::map<Context*, Module*> loaded;
  std::map<std::string, std::unique_ptr<LibraryKernel>> kernels;
};

namespace {

using Lock = std::lock_guard<std::mutex>;

std::map<Library*, std::unique_ptr<Library>>& Libraries() {
  static auto* all = new std::map<Library*, std::unique_ptr<Library>>;
  return *all;
}

Library* Find(CUlibrary handle) {
  auto it = Libraries().find(reinterpret_cast<Library*>(handle));
  return it == Libraries().end() ? nullptr : it->first;
}

LibraryKernel* FindKernel(CUkernel handle) {
  for (auto& [library, owned] : Libraries()) {
    for (auto& [name, kernel] : library->kernels) {
      if (kernel.get() == reinterpret_cast<LibraryKernel*>(handle)) return kernel.get();
    }
  }
  return nullptr;
}

CUresult ModuleHere(Library* library, Module** out) {
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  Module*& module = library->loaded[context];
  if (module == nullptr) {
    if (CUresult r = LoadModule(context, library->image, &module); r != CUDA_SUCCESS) {
      library->loaded.erase(context);
      return r;
    }
  }
  *out = module;
  return CUDA_SUCCESS;
}

CUresult Add(std::vector<char> image, CUlibrary* out) {
  Lock lock(driver().mutex);
  auto library = std::make_unique<Library>();
  library->image = std::move(image);
  *out = reinterpret_cast<CUlibrary>(library.get());
  Libraries().emplace(library.get(), std::move(library));
  return CUDA_SUCCESS;
}

CUkernel KernelOf(Library* library, const std::string& name) {
  auto& kernel = library->kernels[name];
  if (kernel == nullptr) {
    kernel = std::make_unique<LibraryKernel>(LibraryKernel{library, name});
  }
  return reinterpret_cast<CUkernel>(kernel.get());
}

}  // namespace

CUresult ResolveFunction(CUfunction handle, Function** out) {
  *out = FindFunction(handle);
  if (*out != nullptr) return CUDA_SUCCESS;
  LibraryKernel* kernel = FindKernel(reinterpret_cast<CUkernel>(handle));
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Module* module = nullptr;
  if (CUresult r = ModuleHere(kernel->library, &module); r != CUDA_SUCCESS) return r;
  *out = FindFunctionByName(module, kernel->name.c_str());
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

void ForgetLibraries(Context* context) {
  for (auto& [library, owned] : Libraries()) library->loaded.erase(context);
}

namespace api {

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  std::vector<char> image;
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = CopyImage(code, &image); r != CUDA_SUCCESS) return r;
  return Add(std::move(image), library);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                               unsigned int, CUlibraryOption*, void**, unsigned int) {
  std::vector<char> image;
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = LoadImageFile(path, &image); r != CUDA_SUCCESS) return r;
  return Add(std::move(image), library);
}

CUresult cuLibraryUnload(CUlibrary handle) {
  std::vector<Context*> contexts;
  {
    Lock lock(driver().mutex);
    Library* library = Find(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (auto& [context, module] : library->loaded) contexts.push_back(context);
  }
  for (Context* context : contexts) WaitForContext(context);
  Lock lock(driver().mutex);
  Library* library = Find(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (auto& [context, module] : library->loaded) driver().modules.erase(module);
  Libraries().erase(library);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  Lock lock(driver().mutex);
  Library* library = Find(handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Module* module = nullptr;
  if (CUresult r = ModuleHere(library, &module); r != CUDA_SUCCESS) return r;
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = cuLibraryGetModule(&module, handle); r != CUDA_SUCCESS) return r;
  if (CUresult r = cuModuleGetFunction(&function, module, name); r != CUDA_SUCCESS) return r;
  Lock lock(driver().mutex);
  Library* library = Find(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *kernel = KernelOf(library, name);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  CUmodule module = nullptr;
  if (CUresult r = cuLibraryGetModule(&module, handle); r != CUDA_SUCCESS) return r;
  return cuModuleGetFunctionCount(count, module);
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary handle) {
  CUmodule module = nullptr;
  if (kernels == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = cuLibraryGetModule(&module, handle); r != CUDA_SUCCESS) return r;
  Lock lock(driver().mutex);
  const auto& functions = reinterpret_cast<Module*>(module)->functions;
  for (unsigned i = 0; i < count && i < functions.size(); ++i) {
    kernels[i] = KernelOf(reinterpret_cast<Library*>(handle), functions[i]->name);
  }
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* ptr, size_t* bytes, CUlibrary handle, const char* name) {
  CUmodule module = nullptr;
  if (CUresult r = cuLibraryGetModule(&module, handle); r != CUDA_SUCCESS) return r;
  return cuModuleGetGlobal_v2(ptr, bytes, module, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr*, size_t*, CUlibrary, const char*) {
  return CUDA_ERROR_NOT_FOUND;  // images have no managed variables
}

CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary, const char*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  Lock lock(driver().mutex);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Function* found = nullptr;
  CUresult r = ResolveFunction(reinterpret_cast<CUfunction>(handle), &found);
  if (r == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(found);
  return r;
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  Lock lock(driver().mutex);
  LibraryKernel* kernel = FindKernel(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *library = reinterpret_cast<CUlibrary>(kernel->library);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(handle));
}
CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(handle), index, offset, size);
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle,
                              CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(handle));
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                              CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(handle), attribute, value);
}
CUresult cuKernelSetCacheConfig(CUkernel, CUfunc_cache, CUdevice) { return CUDA_SUCCESS; }

}  // namespace api
}  // namespace softgpu
