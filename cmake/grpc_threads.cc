// gRPC 1.51 cannot handle a failed thread start: it aborts, or never answers a call whose work was
// given to the missing thread. Programs with gRPC are linked with --wrap=pthread_create
// (cmake/StasisGrpc.cmake), so gRPC's threads are started here. After several failed attempts the
// program exits with a message. If a daemon exits, its operations continue. If a command exits, it
// reports what may have been started.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/task_limits.h"
#include "base/thread.h"

namespace {

// Retries, because other threads may end at any moment, without an event.
constexpr int kAttempts = 60;
constexpr timespec kBetween{0, 50'000'000};

[[noreturn]] void End(int error_number) {
  stasis::Error error = stasis::TaskError(error_number, "start a thread");
  std::string text = std::string(program_invocation_short_name) + ": " + error.ToString() + ".\n" +
                     error.hint + ".\n";
  if (const char* left = stasis::left_at_task_limit; left != nullptr) {
    error.not_undone = true;
    text += std::string(left) + ".\n";
  }
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(stasis::ExitCode(error));
}

}  // namespace

extern "C" int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

extern "C" int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                     void* (*start)(void*), void* argument) {
  for (int attempt = 1;; ++attempt) {
    const int error = __real_pthread_create(thread, attributes, start, argument);
    if (error != EAGAIN || stasis::StartMayFail::Now()) return error;
    if (attempt == kAttempts) End(error);
    ::nanosleep(&kBetween, nullptr);
  }
}
