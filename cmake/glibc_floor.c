// Lets programs built on Debian 12 start with a glibc as old as 2.34. GCC's static runtime and
// libexpat need three functions of newer versions and find them here before libc.
// cmake/StasisToolchain.cmake links this into everything; tests/dist checks the required version.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#pragma GCC visibility push(hidden)

// glibc 2.36; used by libexpat.
void arc4random_buf(void* out, size_t size) {
  char* next = out;
  while (size > 0) {
    const ssize_t got = getrandom(next, size, 0);
    if (got < 0 && errno != EINTR) abort();
    if (got > 0) {
      next += got;
      size -= (size_t)got;
    }
  }
}

// glibc 2.36; used by std::random_device.
uint32_t arc4random(void) {
  uint32_t value;
  arc4random_buf(&value, sizeof(value));
  return value;
}

struct search {
  uintptr_t pc;
  struct dl_find_object* result;
};

static int visit(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* search = data;
  const ElfW(Phdr)* unwind_table = NULL;
  const ElfW(Phdr)* holds_pc = NULL;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    if (header->p_type == PT_GNU_EH_FRAME) unwind_table = header;
    if (header->p_type == PT_LOAD &&
        search->pc - (info->dlpi_addr + header->p_vaddr) < header->p_memsz) {
      holds_pc = header;
    }
  }
  if (!holds_pc || !unwind_table) return 0;
  search->result->dlfo_flags = 0;
  search->result->dlfo_map_start = (void*)(info->dlpi_addr + holds_pc->p_vaddr);
  search->result->dlfo_map_end = (char*)search->result->dlfo_map_start + holds_pc->p_memsz;
  search->result->dlfo_link_map = NULL;
  search->result->dlfo_eh_frame = (void*)(info->dlpi_addr + unwind_table->p_vaddr);
  return 1;
}

// glibc 2.35; the unwinder uses it to find the table of an address, and needs only the fields set
// here.
int _dl_find_object(void* pc, struct dl_find_object* result) {
  struct search search = {(uintptr_t)pc, result};
  return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}

#pragma GCC visibility pop
