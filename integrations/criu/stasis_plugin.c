/* CRIU's plugin. Before each step of a dump or restore it sends stasisd a request and waits for the
 * answer; it does nothing else. It ignores programs that use no GPU, so these need no daemon.
 *
 *   dump      init, first PAUSE_DEVICES, CHECKPOINT_DEVICES, (post-dump: stasis-criu-hook), fini,
 *             exit of CRIU
 *   restore   init, (post-restore: stasis-criu-hook), first RESUME_DEVICES_LATE,
 *             (post-resume: stasis-criu-hook), fini
 *
 * Needs CRIU 4.0 or newer, which has all of its hooks. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "connection.h"
#include "criu_plugin.h"
#include "log.h"
#include "threads.h"

enum { TASK_ALIVE = 1 }; /* of the option final_state */

extern int criu_get_image_dir(void);
extern int add_inventory_plugin(const char* name) __attribute__((weak));
extern bool check_and_remove_inventory_plugin(const char* name, size_t length)
    __attribute__((weak));
extern void set_compel_interrupt_only_mode(void) __attribute__((weak));
extern void dont_use_freeze_cgroup(void) __attribute__((weak)); /* its name in 4.0 */
extern int add_script(char* path) __attribute__((weak));
extern int opts __attribute__((weak)); /* its first member is final_state */

#define PLUGIN_NAME "stasis_plugin"

/* CRIU calls plugins from a single thread. */
static struct {
  int connection; /* the lease; -1: none */
  bool asked;     /* the first PAUSE_DEVICES or RESUME_DEVICES_LATE has been answered */
  bool held;      /* the daemon holds the program's GPU state */
  int failed_pid; /* the root of a restored tree that did not get its GPU back */
  pid_t criu;     /* the process that dumps; its children inherit its exit handlers */
  bool early;     /* the program runs before its GPU data is complete */
  bool failed;    /* the dump has failed, but CRIU will report success */
} plugin = {.connection = -1};

/* Returns true if a file of /proc contains one of the words. A word is at most 31 bytes long. */
static bool mentions(const char* path, const char* const* words) {
  enum { KEEP = 32, SIZE = 65536 };
  static char buffer[KEEP + SIZE + 1];
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool found = false;
  size_t kept = 0;
  ssize_t size;
  while (!found && (size = read(fd, buffer + kept, SIZE)) > 0) {
    const size_t length = kept + (size_t)size;
    buffer[length] = '\0';
    for (const char* const* word = words; *word != NULL && !found; ++word) {
      found = strstr(buffer, *word) != NULL;
    }
    kept = length < KEEP ? length : KEEP;
    memmove(buffer, buffer + length - kept, kept);
  }
  close(fd);
  return found;
}

/* Returns true if a process of the tree maps a GPU driver's library or device. This only decides
 * whether to ask the daemon, which checks again. */
static bool may_use_gpu(int pid, int depth) {
  static const char* const kSigns[] = {"/libcuda.so", "/dev/nvidia", NULL};
  char path[320];
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  if (mentions(path, kSigns)) return true;
  if (depth > 64) return true;
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* threads = opendir(path);
  if (threads == NULL) return false;
  bool found = false;
  for (struct dirent* thread; !found && (thread = readdir(threads)) != NULL;) {
    if (!isdigit((unsigned char)thread->d_name[0])) continue;
    snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, thread->d_name);
    FILE* children = fopen(path, "re");
    if (children == NULL) continue;
    for (int child; !found && fscanf(children, "%d", &child) == 1;) {
      found = may_use_gpu(child, depth + 1);
    }
    fclose(children);
  }
  closedir(threads);
  return found;
}

/* Returns the target of this dump, or 0 if it cannot be found. CRIU does not pass it to plugins, so
 * it is read from CRIU's command line. For a request by RPC CRIU sets its process title to
 * "dump --rpc -t PID". */
static int target(void) {
  static char line[65536];
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t size = read(fd, line, sizeof line - 1);
  close(fd);
  for (ssize_t i = 0; i < size; ++i) {
    if (line[i] == '\0') line[i] = ' ';
  }
  if (size > 0) line[size] = '\0';
  static const char* const kNames[] = {" -t", " --tree", NULL};
  for (const char* const* name = kNames; *name != NULL; ++name) {
    for (const char* at = strstr(line, *name); at != NULL; at = strstr(at + 1, *name)) {
      const char* number = at + strlen(*name);
      while (*number == ' ' || *number == '=') ++number;
      char* end;
      const long pid = strtol(number, &end, 10);
      if (end != number && pid > 0) return (int)pid;
    }
  }
  return 0;
}

/* Writes the path of a file in this library's folder to `path`. Returns false if the folder is not
 * known or the path is too long. */
static bool beside(const char* name, char* path, size_t size) {
  Dl_info self;
  if (dladdr((void*)beside, &self) == 0 || self.dli_fname == NULL) return false;
  const char* slash = strrchr(self.dli_fname, '/');
  const int length = slash == NULL ? 0 : (int)(slash - self.dli_fname) + 1;
  const int written = snprintf(path, size, "%.*s%s", length, self.dli_fname, name);
  return written > 0 && (size_t)written < size;
}

/* Writes the path of the daemon's socket to `path`: the first line of the file
 * "stasis_plugin.socket" in this library's folder, or the default. */
static void socket_path(char* path, size_t size) {
  char file[4096];
  snprintf(path, size, "%s", STASIS_CRIU_SOCKET);
  if (!beside("stasis_plugin.socket", file, sizeof file)) return;
  FILE* stream = fopen(file, "re");
  if (stream == NULL) return;
  if (fgets(file, sizeof file, stream) != NULL) {
    file[strcspn(file, "\n")] = '\0';
    if (file[0] == '/') snprintf(path, size, "%s", file);
  }
  fclose(stream);
}

/* Returns true if this process's control group does not let it use a device. access() does not call
 * the driver. */
static bool is_refused(const char* device) {
  return access(device, R_OK | W_OK) != 0 && errno == EPERM;
}

/* Returns the mask of STASIS_CRIU_BEGIN_RESTORE. A container runtime puts CRIU into the control
 * group of the container that it restores. */
static int refused_gpus(void) {
  int refused = is_refused("/dev/nvidia-uvm") ? STASIS_CRIU_REFUSES_UVM : 0;
  for (int minor = 0; minor < STASIS_CRIU_MINORS; ++minor) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%d", minor);
    if (is_refused(path)) refused |= 1 << minor;
  }
  return refused;
}

/* Describes the GPUs of a restore to the daemon. podman passes to its runtime only those variables
 * of its environment that begin with "LC_". */
static int describe_gpus(struct stasis_criu_frame* request) {
  const char* map = getenv(STASIS_CRIU_GPU_MAP);
  if (map == NULL) map = getenv("LC_" STASIS_CRIU_GPU_MAP);
  request->value = refused_gpus();
  return map == NULL ? 0 : stasis_frame_text(request, map);
}

/* Connects to the daemon and sends the first request. Returns 0. On failure logs a message and
 * returns -1. */
static int begin(enum stasis_criu_kind kind, int pid) {
  char path[4096];
  socket_path(path, sizeof path);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) {
    stasis_say(STASIS_LOG_ERROR, "the path of stasisd's socket is too long: %s", path);
    return -1;
  }
  memcpy(address.sun_path, path, strlen(path) + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (const struct sockaddr*)&address, sizeof address) != 0) {
    stasis_say(STASIS_LOG_ERROR,
               "the program uses a GPU, and stasisd does not answer at %s (%s): start it "
               "(`systemctl start stasisd`, or `stasis daemon start`)",
               path, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
  }
  struct stasis_criu_frame request, answer;
  stasis_frame_init(&request, kind, pid, 0);
  if (kind == STASIS_CRIU_BEGIN_RESTORE && describe_gpus(&request) != 0) {
    stasis_say(STASIS_LOG_ERROR, "the variable " STASIS_CRIU_GPU_MAP " is too long");
    close(fd);
    return -1;
  }
  if (stasis_exchange(fd, &request, criu_get_image_dir(), &answer) != STASIS_CRIU_OK) {
    stasis_say(STASIS_LOG_ERROR, "%s", answer.text);
    close(fd);
    return -1;
  }
  char number[16], hook[4096];
  snprintf(number, sizeof number, "%d", fd);
  if (setenv(STASIS_CRIU_LEASE, number, 1) != 0 || add_script == NULL ||
      !beside("stasis-criu-hook", hook, sizeof hook) || access(hook, X_OK) != 0 ||
      add_script(hook) != 0) {
    stasis_say(STASIS_LOG_ERROR,
               "the action script stasis-criu-hook beside the plugin cannot be used: %s",
               strerror(errno));
    close(fd);
    return -1;
  }
  plugin.connection = fd;
  return 0;
}

static void end_lease(void) {
  if (plugin.connection < 0) return;
  close(plugin.connection);
  plugin.connection = -1;
}

/* Sends a request and waits for its answer. Lets threads run meanwhile if the daemon asks for it.
 */
static int ask(enum stasis_criu_kind kind, int pid, int value, struct stasis_criu_frame* answer) {
  const int got = stasis_ask_running(plugin.connection, kind, pid, value, answer);
  stasis_stop_running();
  return got;
}

/* Returns true if CRIU's caller learns from CRIU's exit status that a dump has failed. CRIU answers
 * a request by RPC before it exits. runc also waits for the exit, but other callers may not. */
static bool caller_checks_exit(void) {
  static const char* const kRpc[] = {"--rpc", NULL};
  static const char* const kRunc[] = {"runc\n", NULL};
  if (!mentions("/proc/self/cmdline", kRpc)) return true;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/comm", (int)getppid());
  return mentions(path, kRunc);
}

/* Runs when CRIU exits. */
static void complete(void) {
  if (getpid() != plugin.criu) return;
  struct stasis_criu_frame answer;
  if (!plugin.failed && plugin.early &&
      stasis_ask(plugin.connection, STASIS_CRIU_COMPLETE, 0, 0, -1, &answer) != STASIS_CRIU_OK) {
    stasis_say(STASIS_LOG_ERROR, "%s", answer.text);
    plugin.failed = true;
  }
  if (plugin.failed) _exit(1);
}

static int init_dump(void) {
  const int pid = target();
  if (pid != 0 && !may_use_gpu(pid, 0)) return 0;
  if (pid == 0) {
    stasis_say(STASIS_LOG_INFO, "the target of this dump is not known");
    return 0; /* pause_devices() decides */
  }
  if (begin(STASIS_CRIU_BEGIN_DUMP, pid) != 0) return -1;
  /* The agents of a frozen program could not release its GPU. */
  if (set_compel_interrupt_only_mode != NULL) {
    set_compel_interrupt_only_mode();
  } else if (dont_use_freeze_cgroup != NULL) {
    dont_use_freeze_cgroup();
  }
  return 0;
}

static int init_restore(void) {
  /* CRIU returns true for every name if the image has no list of plugins. */
  const bool listed = check_and_remove_inventory_plugin == NULL ||
                      check_and_remove_inventory_plugin(PLUGIN_NAME, strlen(PLUGIN_NAME));
  if (!listed) return 0;
  if (faccessat(criu_get_image_dir(), STASIS_CRIU_FOLDER, F_OK, 0) != 0) {
    if (add_inventory_plugin == NULL || check_and_remove_inventory_plugin == NULL) return 0;
    if (check_and_remove_inventory_plugin("stasis: is there a list?", 24)) return 0;
    stasis_say(STASIS_LOG_ERROR,
               "the program's GPU data, the folder " STASIS_CRIU_FOLDER
               " of the image, is missing: %s",
               strerror(errno));
    return -1;
  }
  return begin(STASIS_CRIU_BEGIN_RESTORE, 0);
}

static int init(int stage) {
  if (stage == STAGE_DUMP) return init_dump();
  if (stage == STAGE_RESTORE) return init_restore();
  return 0;
}

/* CRIU calls this for the root of the tree first. */
static int pause_devices(int pid) {
  if (plugin.asked) return plugin.held ? 0 : -ENOTSUP;
  plugin.asked = true;
  if (plugin.connection < 0) {
    if (target() != 0 || !may_use_gpu(pid, 0)) return -ENOTSUP;
    if (begin(STASIS_CRIU_BEGIN_DUMP, pid) != 0) return -1;
  }
  /* CRIU's alarm limits the time to stop tasks. It must not limit the copying of GPU memory. */
  const unsigned int left = alarm(0);
  struct stasis_criu_frame answer;
  int end = &opts != NULL && opts == TASK_ALIVE ? STASIS_CRIU_STAYS : STASIS_CRIU_ENDS;
  if (end == STASIS_CRIU_STAYS && caller_checks_exit() && atexit(complete) == 0) {
    end = STASIS_CRIU_STAYS_EARLY;
    plugin.criu = getpid();
  }
  const int got = ask(STASIS_CRIU_PAUSE, pid, end, &answer);
  if (left != 0) alarm(left);
  if (got == STASIS_CRIU_NO_GPU) {
    end_lease();
    return -ENOTSUP;
  }
  if (got != STASIS_CRIU_OK) {
    stasis_say(STASIS_LOG_ERROR, "%s", answer.text);
    end_lease();
    return -1;
  }
  plugin.held = true;
  /* Makes a CRIU without this plugin refuse the image. */
  if (add_inventory_plugin != NULL && add_inventory_plugin(PLUGIN_NAME) != 0) return -1;
  return 0;
}

static int checkpoint_devices(int pid) {
  if (!plugin.held) return -ENOTSUP;
  struct stasis_criu_frame answer;
  if (ask(STASIS_CRIU_CHECK, pid, 0, &answer) == STASIS_CRIU_OK) return 0;
  stasis_say(STASIS_LOG_ERROR, "%s", answer.text);
  return -1;
}

/* CRIU calls this for the root of the tree first, when all threads are stopped at the end of their
 * restore. CRIU ignores an error, but after one the daemon has killed the program, and CRIU fails
 * because of that. */
static int resume_devices_late(int pid) {
  if (plugin.connection < 0) return -ENOTSUP;
  if (plugin.asked) {
    if (plugin.failed_pid != 0) return -1;
    stasis_reap_threads(pid, false);
    return 0;
  }
  plugin.asked = true;
  struct stasis_criu_frame answer;
  if (ask(STASIS_CRIU_RESUME, pid, 0, &answer) == STASIS_CRIU_OK) {
    stasis_reap_threads(pid, true);
    return 0;
  }
  stasis_say(STASIS_LOG_ERROR, "the program cannot run, because its GPU state was not restored: %s",
             answer.text);
  plugin.failed_pid = pid;
  stasis_kill_restored(pid);
  return -1;
}

static void fini(int stage, int ret) {
  stasis_end_reaping();
  if (plugin.connection < 0) return;
  struct stasis_criu_frame answer;
  if (stage == STAGE_DUMP && plugin.held) {
    const int stays = ret != 0 || (&opts != NULL && opts == TASK_ALIVE);
    if (ask(STASIS_CRIU_END, 0, stays, &answer) != STASIS_CRIU_OK) {
      stasis_say(STASIS_LOG_ERROR, "%s", answer.text);
      plugin.failed = true;
    }
    plugin.early = plugin.criu != 0 && ret == 0;
  } else if (stage == STAGE_RESTORE) {
    /* If the program runs, the action script has usually sent this request before. */
    (void)ask(STASIS_CRIU_END, 0, ret == 0 && plugin.failed_pid == 0, &answer);
  }
  if (plugin.failed_pid != 0 && ret == 0) {
    /* CRIU would report success although the GPU state was not restored. */
    kill(plugin.failed_pid, SIGKILL);
    _exit(1);
  }
  /* After a dump the connection stays open until CRIU exits, because CRIU has not ended the program
   * yet. */
  if (stage != STAGE_DUMP || !plugin.held) end_lease();
}

__attribute__((visibility("default"))) struct plugin_descriptor CR_PLUGIN_DESC = {
    .name = PLUGIN_NAME,
    .init = init,
    .exit = fini,
    .version = PLUGIN_VERSION,
    .max_hooks = HOOKS,
    .hooks = {[HOOK_RESUME_DEVICES_LATE] = (void*)resume_devices_late,
              [HOOK_PAUSE_DEVICES] = (void*)pause_devices,
              [HOOK_CHECKPOINT_DEVICES] = (void*)checkpoint_devices}};
