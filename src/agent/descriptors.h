// Descriptors of ours inside somebody else's program: they lie high, are closed on exec, and are
// looked at before each use, since programs close all they find and the number becomes another
// file's.
#pragma once

#include <cstdint>

namespace stasis::agent {

// A duplicate that lies high and is closed on exec; -1: none left.
int KeepHigh(int fd);

// How many the process has open; 0: cannot be told.
uint64_t OpenDescriptors();

// A socket of ours, known again by the mark that it carries (wire/packet.h).
struct Watched {
  int fd = -1;
  uint64_t mark = 0;

  bool Holds() const;
  bool Connected() const;  // it is ours, and the other end is open
  void Close();            // if it is still ours
  void Take(int socket);   // which is closed; a duplicate that lies high takes its place
};

// The descriptor of an imported handle. A program may close it, as some close all they find, and
// then the number is another file's: that one we neither close nor send away.
struct KeptFd {
  int fd = -1;
  uint64_t identity = 0;

  bool held() const { return fd >= 0; }
  bool Intact() const;
  bool Keep(int from);  // a duplicate of it; false: none left
  void Close();
};

}  // namespace stasis::agent
