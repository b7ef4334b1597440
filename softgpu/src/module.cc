// Loading of images through a memfd and dlopen. Afterwards the pages of the image's globals are
// replaced by device memory, so that kernels and cuModuleGetGlobal use the same address and a
// checkpoint saves their content like other device memory.

#include "module.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "api.h"
#include "context.h"
#include "driver.h"
#include "library.h"

namespace softgpu {
namespace {

#if defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#else
constexpr int kMachine = EM_X86_64;
#endif

constexpr size_t kMaxImageBytes = size_t{1} << 30;

// Returns the size of an image that is given only by a pointer, or 0 if it is not an image of
// softgpu.
size_t ImageBytes(const void* image) {
  Elf64_Ehdr header;
  if (memcmp(image, ELFMAG, SELFMAG) != 0) return 0;  // rejects PTX and fat binaries
  memcpy(&header, image, sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachine ||
      header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return 0;
  }
  size_t end = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
  const auto* segments =
      reinterpret_cast<const Elf64_Phdr*>(static_cast<const char*>(image) + header.e_phoff);
  for (int i = 0; i < header.e_phnum; ++i) {
    end = std::max<size_t>(end, segments[i].p_offset + segments[i].p_filesz);
  }
  return end <= kMaxImageBytes ? end : 0;
}

// dlopen recognises loaded libraries by name too, so each load uses a different name of the same
// file: the bits of a counter, written as "/" and "./".
void* Open(int fd) {
  static uint64_t count = 0;
  std::string path = "/proc/self/fd/";
  for (uint64_t n = ++count; n != 0; n >>= 1) path += (n & 1) ? "./" : "/";
  path += std::to_string(fd);
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

struct Span {
  uint64_t begin = 0, end = 0;
};

// Returns the pages that stay writable (.data and .bss), relative to the load address. The loader
// maps no more than pages of the kernel: what follows the image may belong to something else.
Span GlobalPages(const char* image) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(image + header->e_phoff);
  Span relro, all;
  for (int i = 0; i < header->e_phnum; ++i) {
    if (segments[i].p_type != PT_GNU_RELRO) continue;
    relro = {segments[i].p_vaddr, segments[i].p_vaddr + segments[i].p_memsz};
  }
  for (int i = 0; i < header->e_phnum; ++i) {
    const Elf64_Phdr& segment = segments[i];
    if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_W)) continue;
    uint64_t begin = std::max(segment.p_vaddr, relro.end);
    uint64_t end = segment.p_vaddr + segment.p_memsz;
    if (begin >= end) continue;
    if (all.end == 0) all.begin = begin;
    all.end = end;
  }
  all.begin = all.begin / KernelPage() * KernelPage();
  all.end = RoundUp(all.end, KernelPage());
  if (all.begin < relro.end) return {1, 0};  // would include a page of the loader
  return all;
}

// Returns the image's exported variables within `pages`.
std::vector<Global> ReadGlobals(const link_map* map, const Span& pages) {
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  const uint32_t* hash = nullptr;
  for (const Elf64_Dyn* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const Elf64_Sym*>(d->d_un.d_ptr);
    if (d->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(d->d_un.d_ptr);
    if (d->d_tag == DT_GNU_HASH) hash = reinterpret_cast<const uint32_t*>(d->d_un.d_ptr);
  }
  std::vector<Global> globals;
  if (symbols == nullptr || names == nullptr || hash == nullptr) return globals;
  // DT_GNU_HASH: bucket count, first hashed symbol, bloom words, shift; bloom; buckets; chains.
  const uint32_t* buckets = hash + 4 + hash[2] * 2;
  const uint32_t* chains = buckets + hash[0];
  for (uint32_t b = 0; b < hash[0]; ++b) {
    for (uint32_t i = buckets[b]; i != 0; ++i) {
      const Elf64_Sym& s = symbols[i];
      if (ELF64_ST_TYPE(s.st_info) == STT_OBJECT && s.st_value >= pages.begin &&
          s.st_value + s.st_size <= pages.end) {
        globals.push_back({names + s.st_name, map->l_addr + s.st_value, s.st_size});
      }
      if (chains[i - hash[1]] & 1) break;
    }
  }
  return globals;
}

CUresult TakeGlobals(Module* module, const char* image) {
  link_map* map = nullptr;
  if (dlinfo(module->library, RTLD_DI_LINKMAP, &map) != 0) return CUDA_ERROR_INVALID_IMAGE;
  Span pages = GlobalPages(image);
  if (pages.begin > pages.end) return CUDA_ERROR_INVALID_IMAGE;
  if (pages.begin == pages.end) return CUDA_SUCCESS;
  module->globals = ReadGlobals(map, pages);
  CUresult r =
      driver().memory.Create(MemoryKind::kModule, module->context->ordinal, pages.end - pages.begin,
                             false, &module->globals_memory, map->l_addr + pages.begin);
  if (r != CUDA_SUCCESS) return r;
  Memory* memory = module->globals_memory;
  driver().memory.AddRange(
      {RangeKind::kGlobal, memory->home, memory->bytes, memory, module->context});
  return CUDA_SUCCESS;
}

void ReadKernels(Module* module) {
  for (const Kernel* const* at = module->image->begin; at != module->image->end; ++at) {
    auto function = std::make_unique<Function>();
    function->module = module;
    function->kernel = *at;
    function->name = (*at)->name;
    function->flags = (*at)->flags;
    module->functions.push_back(std::move(function));
  }
}

bool ReadWholeFile(const char* path, std::vector<char>* out) {
  Fd file(open(path, O_RDONLY | O_CLOEXEC));
  struct stat s;
  if (!file.valid() || fstat(file.get(), &s) != 0) return false;
  out->resize(size_t(s.st_size));
  size_t done = 0;
  while (done < out->size()) {
    ssize_t got = read(file.get(), out->data() + done, out->size() - done);
    if (got <= 0) return false;
    done += size_t(got);
  }
  return true;
}

Module* FindModule(CUmodule handle) {
  auto it = driver().modules.find(reinterpret_cast<Module*>(handle));
  return it == driver().modules.end() ? nullptr : it->first;
}

}  // namespace

CUresult CopyImage(const void* image, std::vector<char>* out) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = ImageBytes(image);
  if (bytes == 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  out->assign(static_cast<const char*>(image), static_cast<const char*>(image) + bytes);
  return CUDA_SUCCESS;
}

CUresult LoadImageFile(const char* path, std::vector<char>* out) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> content;
  if (!ReadWholeFile(path, &content)) return CUDA_ERROR_FILE_NOT_FOUND;
  if (content.size() < sizeof(Elf64_Ehdr)) return CUDA_ERROR_INVALID_IMAGE;
  size_t bytes = ImageBytes(content.data());
  if (bytes == 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  if (bytes > content.size()) return CUDA_ERROR_INVALID_IMAGE;  // truncated
  *out = std::move(content);
  return CUDA_SUCCESS;
}

CUresult LoadModule(Context* context, const std::vector<char>& image, Module** out) {
  Fd file(memfd_create("softgpu-module", MFD_CLOEXEC));
  if (!file.valid() || write(file.get(), image.data(), image.size()) != ssize_t(image.size())) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto module = std::make_unique<Module>();
  module->context = context;
  module->library = Open(file.get());
  if (module->library == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  module->image = static_cast<const Image*>(dlsym(module->library, kImageSymbol));
  if (module->image == nullptr || module->image->magic != kImageMagic) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  if (module->image->version != kImageVersion) return CUDA_ERROR_INVALID_IMAGE;
  ReadKernels(module.get());
  if (CUresult r = TakeGlobals(module.get(), image.data()); r != CUDA_SUCCESS) return r;
  *out = module.get();
  driver().modules.emplace(*out, std::move(module));
  return CUDA_SUCCESS;
}

Module::~Module() {
  if (globals_memory != nullptr) {
    driver().memory.RemoveRange(globals_memory->home);
    driver().memory.Destroy(globals_memory);
  }
  if (library != nullptr) dlclose(library);
}

Function* FindFunction(CUfunction handle) {
  for (auto& [module, owned] : driver().modules) {
    for (auto& function : module->functions) {
      if (function.get() == reinterpret_cast<Function*>(handle)) return function.get();
    }
  }
  return nullptr;
}

Function* FindFunctionByName(Module* module, const char* name) {
  for (auto& function : module->functions) {
    if (function->name == name) return function.get();
  }
  return nullptr;
}

void UnloadModules(Context* context) {
  ForgetLibraries(context);
  std::erase_if(driver().modules, [&](auto& item) { return item.first->context == context; });
}

namespace api {

using Lock = std::lock_guard<std::mutex>;

namespace {

CUresult Load(const std::vector<char>& image, CUmodule* out) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  Module* module = nullptr;
  CUresult r = LoadModule(context, image, &module);
  if (r == CUDA_SUCCESS) *out = reinterpret_cast<CUmodule>(module);
  return r;
}

}  // namespace

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::vector<char> image;
  if (CUresult r = LoadImageFile(path, &image); r != CUDA_SUCCESS) return r;
  return Load(image, module);
}

CUresult cuModuleLoadData(CUmodule* module, const void* data) {
  std::vector<char> image;
  if (CUresult r = CopyImage(data, &image); r != CUDA_SUCCESS) return r;
  return Load(image, module);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*,
                            void**) {
  return cuModuleLoadData(module, image);  // the JIT options have nothing to compile
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule handle) {
  Context* context = nullptr;
  {
    Lock lock(driver().mutex);
    Module* module = FindModule(handle);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    context = module->context;
  }
  WaitForContext(context);
  Lock lock(driver().mutex);
  driver().modules.erase(reinterpret_cast<Module*>(handle));
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  Lock lock(driver().mutex);
  Module* module = FindModule(handle);
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Function* found = FindFunctionByName(module, name);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(found);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* ptr, size_t* bytes, CUmodule handle, const char* name) {
  Lock lock(driver().mutex);
  Module* module = FindModule(handle);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (const Global& global : module->globals) {
    if (global.name != name) continue;
    if (ptr != nullptr) *ptr = global.address;
    if (bytes != nullptr) *bytes = global.bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  Lock lock(driver().mutex);
  Module* module = FindModule(handle);
  if (count == nullptr || module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = unsigned(module->functions.size());
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule handle) {
  Lock lock(driver().mutex);
  Module* module = FindModule(handle);
  if (functions == nullptr || module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count && i < module->functions.size(); ++i) {
    functions[i] = reinterpret_cast<CUfunction>(module->functions[i].get());
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace softgpu
