// Functions of glibc whose symbol versions moved between releases (dlsym and pthread_create went to
// libc.so.6 with version 2.34), found in the loaded libraries' own tables. So the agent needs only
// symbol versions that older releases have too, and one build works with all releases.
#pragma once

#include <cstdint>

namespace stasis::agent {

// Returns the default version of a function of libc, libdl or libpthread, or null if none of these
// is loaded with such a function. Takes no lock except the loader's and allocates nothing.
void* FindLibcSymbol(const char* name);

// Copies the build id of the library that holds `address`. Returns false if it has none.
bool FindBuildId(const void* address, uint8_t (&id)[20]);

}  // namespace stasis::agent
