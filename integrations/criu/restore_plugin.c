/* A plugin that Stasis itself loads into the CRIU of a restore. CRIU calls its hook when all
 * threads of the program are stopped at the end of their restore. There the plugin asks Stasis,
 * which lets only the driver's threads run and answers when all data of the program is verified.
 * No other thread of the program runs before that: the program is killed if Stasis refuses, or if
 * Stasis or CRIU is killed. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connection.h"
#include "criu_plugin.h"
#include "log.h"
#include "threads.h"

/* CRIU calls plugins from a single thread. */
static struct {
  int connection; /* -1: none */
  bool failed;
} plugin = {.connection = -1};

/* Tells Stasis that the hook will be called. */
static int init(int stage) {
  const char* number = getenv(STASIS_CRIU_CONNECTION);
  if (stage != STAGE_RESTORE || number == NULL) return 0;
  plugin.connection = atoi(number);
  struct stasis_criu_frame answer = {.text = "the connection is not open"};
  if (fcntl(plugin.connection, F_SETFD, FD_CLOEXEC) == 0 &&
      stasis_ask(plugin.connection, STASIS_CRIU_BEGIN_RESTORE, 0, 0, -1, &answer) ==
          STASIS_CRIU_OK) {
    return 0;
  }
  stasis_say(STASIS_LOG_ERROR, "Stasis does not answer: %s", answer.text);
  return -1;
}

static void end_connection(void) {
  if (plugin.connection >= 0) close(plugin.connection);
  plugin.connection = -1;
}

/* CRIU calls this for the root of the tree first. It ignores an error, but it fails to detach from
 * a killed program. */
static int resume_devices_late(int root) {
  if (plugin.failed) return -1;
  if (plugin.connection < 0) return -ENOTSUP;
  struct stasis_criu_frame answer = {.text = "the program has too many threads"};
  const int socket = plugin.connection;
  if (stasis_die_with_criu(root) &&
      stasis_ask_running(socket, STASIS_CRIU_RESUME, root, 0, &answer) == STASIS_CRIU_OK) {
    stasis_stop_running();
    stasis_begin_reaping();
    end_connection();
    return 0;
  }
  stasis_kill_restored(root);
  plugin.failed = true;
  stasis_say(STASIS_LOG_ERROR, "the program was killed before it ran: %s", answer.text);
  end_connection();
  return -1;
}

static void fini(int stage, int ret) {
  (void)stage;
  (void)ret;
  stasis_end_reaping();
  end_connection();
}

__attribute__((visibility("default"))) struct plugin_descriptor CR_PLUGIN_DESC = {
    .name = "stasis_restore",
    .init = init,
    .exit = fini,
    .version = PLUGIN_VERSION,
    .max_hooks = HOOK_RESUME_DEVICES_LATE + 1,
    .hooks = {[HOOK_RESUME_DEVICES_LATE] = (void*)resume_devices_late}};
