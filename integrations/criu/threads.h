/* Threads of a program that CRIU holds by ptrace. CRIU calls the plugin from a single thread, the
 * tracer. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "connection.h"

/* Lets the threads of a frame THREAD_IDS run, with all signals blocked: the agents' and the
 * driver's. Returns false if one of them does not run. */
bool stasis_let_run(const struct stasis_criu_frame* frame);
/* Stops these threads again. */
void stasis_stop_running(void);

/* Sends a request and waits for its answer. Lets threads run meanwhile if Stasis asks for it; they
 * run until stasis_stop_running(). Returns the answer's kind as stasis_exchange() does. */
int stasis_ask_running(int socket, enum stasis_criu_kind kind, int pid, int value,
                       struct stasis_criu_frame* answer);

/* Makes the kernel kill all processes of a restored tree if CRIU ends before it detaches from them.
 * Returns false if the tree has too many threads. */
bool stasis_die_with_criu(pid_t root);

/* Kills a restored tree and waits until its root has ended: the processes that
 * stasis_die_with_criu() has found, otherwise only the root. CRIU waits only for the root process,
 * which cannot end before its tracer, CRIU, has waited for its threads. */
void stasis_kill_restored(pid_t root);

/* Call this for each process of a restored tree, the root first, when CRIU only has to detach from
 * it. If the root process is killed now, CRIU fails and waits for the root process. If the root
 * process is the first process of a pid namespace, it cannot end before its tracer has waited for
 * all other threads of the namespace. CRIU does not wait for these threads and would hang, so a
 * handler of SIGCHLD waits for them. */
void stasis_reap_threads(pid_t pid, bool is_root);
/* Installs only the handler, after stasis_die_with_criu() has found the threads. */
void stasis_begin_reaping(void);
/* Removes the handler. */
void stasis_end_reaping(void);
