/* stasis-criu-hook: an action script of CRIU that the plugin adds. It sends its request over the
 * plugin's connection. CRIU closes all descriptors of its scripts, so the script copies the
 * connection from CRIU, its parent. Actions other than post-dump, post-restore and post-resume
 * succeed at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "connection.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

static int take_connection(void) {
  const char* number = getenv(STASIS_CRIU_LEASE);
  if (number == NULL) {
    errno = ENOENT;
    return -1;
  }
  const int criu = (int)syscall(SYS_pidfd_open, getppid(), 0);
  if (criu < 0) return -1;
  return (int)syscall(SYS_pidfd_getfd, criu, atoi(number), 0);
}

int main(void) {
  const char* action = getenv("CRTOOLS_SCRIPT_ACTION");
  const char* root = getenv("CRTOOLS_INIT_PID");
  enum stasis_criu_kind kind;
  if (action != NULL && strcmp(action, "post-dump") == 0) {
    kind = STASIS_CRIU_COMMIT;
  } else if (action != NULL && strcmp(action, "post-restore") == 0) {
    kind = STASIS_CRIU_RESTORED;
  } else if (action != NULL && strcmp(action, "post-resume") == 0) {
    kind = STASIS_CRIU_END;
  } else {
    return 0;
  }
  const int connection = take_connection();
  if (connection < 0) {
    fprintf(
        stderr,
        "Error (stasis-criu-hook): stasis: cannot take the connection to stasisd from CRIU: %s\n",
        strerror(errno));
    return 1;
  }
  struct stasis_criu_frame answer;
  if (stasis_ask(connection, kind, root != NULL ? atoi(root) : 0, kind == STASIS_CRIU_END, -1,
                 &answer) == STASIS_CRIU_OK) {
    return 0;
  }
  fprintf(stderr, "Error (stasis-criu-hook): stasis: %s\n", answer.text);
  return 1;
}
