#include "agent/device_files.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "abi/driver_kinds.h"
#include "agent/descriptors.h"

namespace stasis::agent {
namespace {

bool IsDeviceFile(const char* path) { return abi::KindOfDeviceFile(path) != nullptr; }

// The descriptor stays open on /dev/null, so that its number is not reused. Otherwise the driver,
// or a program that closes unknown descriptors, could close an unrelated file with the same number.
void Replace(int fd, int null) {
  const long flags = syscall(SYS_fcntl, fd, F_GETFD);
  if (null < 0) {
    syscall(SYS_close, fd);
  } else {
    syscall(SYS_dup3, null, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
  }
}

void ReplaceFiles() {
  const int null = int(syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC));
  ForEachDescriptor([null](int folder, const char* name) {
    char target[64] = {};
    if (syscall(SYS_readlinkat, folder, name, target, sizeof(target) - 1) <= 0) return;
    if (!IsDeviceFile(target)) return;
    int fd = 0;
    for (const char* digit = name; *digit >= '0' && *digit <= '9'; ++digit) {
      fd = fd * 10 + (*digit - '0');
    }
    Replace(fd, null);
  });
  if (null >= 0) syscall(SYS_close, null);
}

uint64_t Hex(const char** at) {
  uint64_t value = 0;
  for (;; ++*at) {
    const char c = **at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return value;
    value = value << 4 | uint64_t(digit);
  }
}

// Replaces the mapping of a line of maps: "7f12a000-7f12b000 rw-s 00000000 00:05 463
// /dev/nvidiactl".
void ReplaceMapping(const char* line, bool (*keep)(uint64_t begin, uint64_t end)) {
  const char* path = strchr(line, '/');
  if (path == nullptr || !IsDeviceFile(path)) return;
  const uint64_t begin = Hex(&line);
  if (*line != '-') return;
  ++line;
  const uint64_t end = Hex(&line);
  if (begin >= end || keep(begin, end)) return;
  syscall(SYS_mmap, begin, end - begin, PROT_NONE,
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

// It is safe to change the mappings while the file is read, because the kernel continues after the
// last reported address.
void ReplaceMappings(bool (*keep)(uint64_t begin, uint64_t end)) {
  const int maps = int(syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (maps < 0) return;
  char buffer[8192];
  size_t filled = 0;
  for (;;) {
    const long n = syscall(SYS_read, maps, buffer + filled, sizeof(buffer) - 1 - filled);
    if (n <= 0) break;
    filled += size_t(n);
    buffer[filled] = 0;
    char* line = buffer;
    while (char* end = static_cast<char*>(memchr(line, '\n', filled - size_t(line - buffer)))) {
      *end = 0;
      ReplaceMapping(line, keep);
      line = end + 1;
    }
    filled -= size_t(line - buffer);
    memmove(buffer, line, filled);
    if (filled == sizeof(buffer) - 1) break;  // no path is that long
  }
  syscall(SYS_close, maps);
}

}  // namespace

void LeaveDeviceFilesToParent(bool (*keep)(uint64_t begin, uint64_t end)) {
  ReplaceFiles();
  ReplaceMappings(keep);
}

}  // namespace stasis::agent
