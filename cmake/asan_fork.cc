// Part of unit test programs under AddressSanitizer. A forked child may find the sanitizer's
// allocator locked by a thread that the child does not have, and then hangs at its next allocation.
// glibc's allocator has no such problem, so released programs may fork beside threads. Newer
// versions of clang, which may lock the allocator around fork themselves, do not use this file.

#include <pthread.h>

// The sanitizer's own functions, which its leak detector uses for the same purpose.
namespace __lsan {  // NOLINT: the sanitizer's name
void LockAllocator();
void UnlockAllocator();
}  // namespace __lsan

namespace {

[[maybe_unused]] const int kRegistered =
    pthread_atfork(__lsan::LockAllocator, __lsan::UnlockAllocator, __lsan::UnlockAllocator);

}  // namespace
