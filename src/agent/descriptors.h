// The agent's descriptors inside a program. They have high numbers and are closed on exec. Each is
// checked before use, because some programs close every descriptor that they find, and the number
// may then belong to another file.
#pragma once

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace stasis::agent {

// Returns a duplicate with a high number, closed on exec, or -1 if no descriptor is left.
int KeepHigh(int fd);

// Calls f(folder, name) for each name in /proc/self/fd, including "." and "..". `folder` is that
// directory, opened. Does not call f if the directory cannot be opened.
//
// SAFETY: takes no lock, allocates nothing, and makes system calls without libc's wrappers, which
// the program could have replaced.
template <class F>
void ForEachDescriptor(F f) {
  const int folder =
      int(syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder < 0) return;
  alignas(8) char buffer[4096];
  for (;;) {
    const long n = syscall(SYS_getdents64, folder, buffer, sizeof(buffer));
    if (n <= 0) break;
    // struct linux_dirent64: inode 8, offset 8, record length 2, type 1, name
    for (long at = 0; at < n;) {
      uint16_t length;
      memcpy(&length, buffer + at + 16, sizeof(length));
      if (length == 0) break;
      f(folder, buffer + at + 19);
      at += length;
    }
  }
  syscall(SYS_close, folder);
}

// Returns the number of open descriptors of the process, or 0 if it is unknown.
uint64_t OpenDescriptors();

// A socket of the agent, identified by a mark that it carries (SetSocketMark in
// agent_protocol/packet.h).
struct Watched {
  int fd = -1;
  uint64_t mark = 0;

  bool Holds() const;      // the number still belongs to this socket
  bool Connected() const;  // Holds(), and the other end is open
  void Close();            // closes it if Holds()
  void Take(int socket);   // replaces `socket`, which is closed, by a duplicate with a high number
};

// The descriptor of an imported handle. The program may have closed it, and then the number belongs
// to another file, which the agent must neither close nor send.
struct KeptFd {
  int fd = -1;
  uint64_t identity = 0;

  bool held() const { return fd >= 0; }
  bool Intact() const;  // the number still belongs to the same file
  bool Keep(int from);  // holds a duplicate of `from`; false if no descriptor is left
  void Close();
};

}  // namespace stasis::agent
