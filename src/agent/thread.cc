#include "agent/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "agent/libc_symbol.h"

namespace stasis::agent {
namespace {

struct Start {
  const char* name;
  void* (*run)(void*);
  void* argument;
};

void* Run(void* argument) {
  Start start = *static_cast<Start*>(argument);
  free(argument);
  NameThread(start.name);
  return start.run(start.argument);
}

}  // namespace

void NameThread(const char* name) { prctl(PR_SET_NAME, name); }

bool StartThread(const char* name, void* (*run)(void*), void* argument) {
  auto* create =
      reinterpret_cast<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>(
          FindLibcSymbol("pthread_create"));
  auto* detach = reinterpret_cast<int (*)(pthread_t)>(FindLibcSymbol("pthread_detach"));
  auto* start = static_cast<Start*>(malloc(sizeof(Start)));
  if (create == nullptr || detach == nullptr || start == nullptr) {
    free(start);
    return false;
  }
  *start = {name, run, argument};
  int before = errno;
  // A new thread inherits its creator's signal mask, so block all signals around its creation: the
  // program's threads must handle the program's signals. sigprocmask equals pthread_sigmask here
  // and exists in every glibc.
  sigset_t all, old;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &old);
  pthread_t thread;
  bool started = create(&thread, nullptr, Run, start) == 0;
  sigprocmask(SIG_SETMASK, &old, nullptr);
  errno = before;
  if (!started) {
    free(start);
    return false;
  }
  detach(thread);
  return true;
}

}  // namespace stasis::agent
