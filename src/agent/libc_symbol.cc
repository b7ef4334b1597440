#include "agent/libc_symbol.h"

#include <elf.h>
#include <link.h>
#include <string.h>

namespace stasis::agent {
namespace {

struct Search {
  const char* name;
  void* found;
};

const char* const kLibraries[] = {"libc.so.6", "libdl.so.2", "libpthread.so.0"};

bool IsOfGlibc(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* base = slash != nullptr ? slash + 1 : path;
  for (const char* library : kLibraries) {
    if (strcmp(base, library) == 0) return true;
  }
  return false;
}

uint32_t GnuHash(const char* name) {
  uint32_t h = 5381;
  for (; *name != '\0'; ++name) h = h * 33 + static_cast<unsigned char>(*name);
  return h;
}

struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* hash = nullptr;
  const uint16_t* versions = nullptr;
};

Tables TablesOf(const dl_phdr_info* info) {
  Tables tables;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    auto* dynamic =
        reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
      // glibc's loader has replaced the offsets in the dynamic section by addresses; other loaders
      // leave them unchanged.
      uintptr_t at = dynamic->d_un.d_ptr;
      if (at < info->dlpi_addr) at += info->dlpi_addr;
      if (dynamic->d_tag == DT_SYMTAB) tables.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (dynamic->d_tag == DT_STRTAB) tables.strings = reinterpret_cast<const char*>(at);
      if (dynamic->d_tag == DT_GNU_HASH) tables.hash = reinterpret_cast<const uint32_t*>(at);
      if (dynamic->d_tag == DT_VERSYM) tables.versions = reinterpret_cast<const uint16_t*>(at);
    }
  }
  return tables;
}

int Visit(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  if (info->dlpi_name == nullptr || !IsOfGlibc(info->dlpi_name)) return 0;
  Tables tables = TablesOf(info);
  if (!tables.symbols || !tables.strings || !tables.hash) return 0;
  const uint32_t buckets = tables.hash[0];
  const uint32_t first = tables.hash[1];
  const uint32_t* bucket = tables.hash + 4 + tables.hash[2] * (sizeof(ElfW(Addr)) / 4);
  const uint32_t* chain = bucket + buckets;
  const uint32_t hash = GnuHash(search->name);
  uint32_t i = buckets != 0 ? bucket[hash % buckets] : 0;
  if (i < first) return 0;
  for (;; ++i) {
    const ElfW(Sym)& symbol = tables.symbols[i];
    const uint32_t entry = chain[i - first];
    // The hidden bit marks versions that only old programs are bound to.
    bool current = tables.versions == nullptr || (tables.versions[i] & 0x8000) == 0;
    if ((entry | 1) == (hash | 1) && current && symbol.st_shndx != SHN_UNDEF &&
        strcmp(tables.strings + symbol.st_name, search->name) == 0) {
      search->found = reinterpret_cast<void*>(info->dlpi_addr + symbol.st_value);
      return 1;
    }
    if (entry & 1) return 0;
  }
}

struct IdSearch {
  uintptr_t address;
  uint8_t* id;
};

int VisitForId(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<IdSearch*>(data);
  bool here = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info->dlpi_phdr[i];
    here |= p.p_type == PT_LOAD && search->address - (info->dlpi_addr + p.p_vaddr) < p.p_memsz;
  }
  if (!here) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& p = info->dlpi_phdr[i];
    if (p.p_type != PT_NOTE) continue;
    auto* at = reinterpret_cast<const char*>(info->dlpi_addr + p.p_vaddr);
    const char* end = at + p.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      memcpy(&note, at, sizeof(note));
      const char* name = at + sizeof(note);
      const char* description = name + ((note.n_namesz + 3) & ~3u);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz >= 8 &&
          memcmp(name, "GNU", 4) == 0) {
        memcpy(search->id, description, note.n_descsz < 20 ? note.n_descsz : 20);
        return 1;
      }
      at = description + ((note.n_descsz + 3) & ~3u);
    }
  }
  return -1;
}

}  // namespace

void* FindLibcSymbol(const char* name) {
  Search search{name, nullptr};
  dl_iterate_phdr(Visit, &search);
  return search.found;
}

bool FindBuildId(const void* address, uint8_t (&id)[20]) {
  memset(id, 0, sizeof(id));
  IdSearch search{reinterpret_cast<uintptr_t>(address), id};
  return dl_iterate_phdr(VisitForId, &search) == 1;
}

}  // namespace stasis::agent
