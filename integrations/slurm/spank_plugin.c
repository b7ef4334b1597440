/* Slurm's plugin: puts stasis-step in front of the program of each task of a job that was submitted
 * with --stasis, or in a partition in which that is the default.
 *
 * Line of plugstack.conf:
 *
 *   optional /usr/lib/stasis/lib/stasis/slurm/stasis.so [launcher=PATH] [partitions=LIST]
 * [tcp=keep]
 *
 *   launcher    the program stasis-step; default: that of the plugin's own installation
 *   partitions  names, separated by commas, of partitions where --stasis is the default
 *   tcp=keep    tasks of jobs with --stasis=tcp=keep get CAP_NET_ADMIN too (docs/slurm.md)
 *
 * The launcher gets CAP_CHECKPOINT_RESTORE and, unless tcp=keep is given, no other capability, as
 * an ambient one:
 *
 *   task_init_privileged  as root: keeps the capabilities that slurmstepd needs to become the user,
 *                         and this one, across the change of user ids
 *   task_init             as the user: keeps the launcher's only, and starts the launcher
 *
 * If the job was requeued, task_init_privileged also keeps CAP_SYS_ADMIN; for the batch script it
 * does so always, because it cannot know. task_init makes a pid namespace with it, in which the
 * launcher can restore the program if its process ids are taken on the node
 * (docs/decisions/slurm-pid-namespace.md). No process of the task has this capability when
 * task_init has returned.
 *
 * If task_init_privileged fails, the task runs without Stasis and without the capability. If
 * task_init fails, the task fails. The reason is in slurmd's log and in the task's output.
 *
 *   exit                  in slurmstepd, after the tasks: frees memory that a killed task has left
 *
 * Compiled for one release of Slurm, as every SPANK plugin. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(stasis, 1)

#define TEXT_OF(number) TEXT(number)
#define TEXT(number) #number
/* `stasis slurm check` looks for this text in the file of the plugin. */
__attribute__((used)) static const char compiled_for[] =
    "stasis: compiled for Slurm " TEXT_OF(SLURM_VERSION_NUMBER);

enum { PATH_SIZE = 4096, OPTIONS_SIZE = 256, NAME_SIZE = 64 };

static char launcher[PATH_SIZE];
static char partitions[1024];
static char options[OPTIONS_SIZE]; /* the value of --stasis */
static enum { NOT_GIVEN, GIVEN, OFF } given;
static bool keeps_tcp;           /* the argument tcp=keep */
static bool holds_rights;        /* task_init_privileged has changed the capabilities */
static bool may_make_namespaces; /* and CAP_SYS_ADMIN is among them */

/* Returns true if `word` of this length is one of a list's words, which commas separate. */
static bool lists(const char* list, const char* word, size_t length) {
  while (*list != '\0') {
    const size_t here = strcspn(list, ",");
    if (here == length && strncmp(list, word, length) == 0) return true;
    list += here + (list[here] == ',');
  }
  return false;
}

/* Called for sbatch, salloc and srun, and again in slurmstepd. A wrong option is refused before the
 * job is submitted; stasis-step checks the values. */
static int take_option(int value, const char* text, int remote) {
  (void)value;
  (void)remote;
  if (text == NULL || *text == '\0' || strcmp(text, "(null)") == 0) text = "";
  if (strcmp(text, "off") == 0) {
    given = OFF;
    return 0;
  }
  int given_tcp = 0;
  for (const char* word = text; *word != '\0';) {
    const size_t length = strcspn(word, ","), name = strcspn(word, "=");
    if (name < length ? !lists("every,keep,to,reserve,tcp", word, name)
                      : !lists("reserve,multinode,together,nopidns", word, length)) {
      slurm_error(
          "--stasis=%s: \"%.*s\" is not an option; "
          "--stasis[=every=30m,keep=3,to=REPO,reserve,tcp=keep|close,multinode,together,nopidns|"
          "off]",
          text, (int)length, word);
      return -1;
    }
    /* The capability would be that of the first, and the launcher would use the last. */
    if (name < length && strncmp(word, "tcp=", 4) == 0 && ++given_tcp > 1) {
      slurm_error("--stasis=%s: tcp is given twice; choose tcp=keep or tcp=close", text);
      return -1;
    }
    word += length + (word[length] == ',');
  }
  if (snprintf(options, sizeof options, "%s", text) >= (int)sizeof options) {
    slurm_error("--stasis: the value is too long");
    return -1;
  }
  given = GIVEN;
  return 0;
}

static struct spank_option stasis_option = {
    "stasis",
    "every=30m,keep=3,to=REPO,reserve,tcp=keep|close,multinode,together,nopidns",
    "dump GPU programs when the job is preempted, and "
    "continue them after the requeue (docs/slurm.md)",
    2 /* the value is optional */,
    1,
    take_option};

/* Sets the launcher to ROOT/libexec/stasis-step, if this file is ROOT/lib/stasis/slurm/stasis.so.
 */
static void find_launcher(void) {
  Dl_info info;
  char path[PATH_SIZE];
  if (dladdr((void*)find_launcher, &info) == 0 || realpath(info.dli_fname, path) == NULL) return;
  for (int i = 0; i < 4; ++i) {
    char* slash = strrchr(path, '/');
    if (slash == NULL) return;
    *slash = '\0';
  }
  if (snprintf(launcher, sizeof launcher, "%s/libexec/stasis-step", path) >= (int)sizeof launcher) {
    launcher[0] = '\0';
  }
}

int slurm_spank_init(spank_t spank, int count, char** words) {
  find_launcher();
  for (int i = 0; i < count; ++i) {
    if (strncmp(words[i], "launcher=", 9) == 0) {
      snprintf(launcher, sizeof launcher, "%s", words[i] + 9);
    } else if (strncmp(words[i], "partitions=", 11) == 0) {
      snprintf(partitions, sizeof partitions, "%s", words[i] + 11);
    } else if (strcmp(words[i], "tcp=keep") == 0) {
      keeps_tcp = true;
    } else {
      slurm_error("stasis: plugstack.conf has an unknown argument: %s", words[i]);
    }
  }
  const spank_context_t context = spank_context();
  if (context == S_CTX_LOCAL || context == S_CTX_REMOTE || context == S_CTX_ALLOCATOR) {
    return spank_option_register(spank, &stasis_option) == ESPANK_SUCCESS ? 0 : -1;
  }
  return 0;
}

/* Where jobs are submitted: passes the folders of Stasis to the Epilog, where their names begin
 * with SPANK_ (`stasis slurm epilog`). */
int slurm_spank_init_post_opt(spank_t spank, int count, char** words) {
  static const char* const folders[] = {"STASIS_STATE_DIR", "STASIS_RUN_DIR", "STASIS_ARENA_DIR",
                                        "STASIS_IMAGE_DIR", "XDG_STATE_HOME"};
  (void)count;
  (void)words;
  const spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) return 0;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i) {
    const char* value = getenv(folders[i]);
    if (value != NULL) spank_job_control_setenv(spank, folders[i], value, 1);
  }
  return 0;
}

/* Returns true if this task gets the launcher. */
static bool is_wanted(spank_t spank) {
  if (given == OFF) return false;
  uint32_t step = 0;
  if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS) return false;
  /* The step of job_container plugins, and the shell of salloc. */
  if (step == SLURM_EXTERN_CONT || step == SLURM_INTERACTIVE_STEP) return false;
  if (given == GIVEN) return true;
  char partition[256];
  return spank_getenv(spank, "SLURM_JOB_PARTITION", partition, sizeof partition) ==
             ESPANK_SUCCESS &&
         lists(partitions, partition, strlen(partition));
}

/* Sets all capabilities of this process to `rights`, one bit for each. */
static int set_rights(uint64_t rights, bool inheritable) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  for (int word = 0; word < 2; ++word) {
    const uint32_t bits = (uint32_t)(rights >> (32 * word));
    data[word].effective = data[word].permitted = bits;
    data[word].inheritable = inheritable ? bits : 0;
  }
  return (int)syscall(SYS_capset, &header, data);
}

#define BIT(capability) (UINT64_C(1) << (capability))

/* How often the job was requeued. The item S_SLURM_RESTART_COUNT is always 0 in steps other than
 * the batch script (22.05). */
static void read_restarts(spank_t spank, char restarts[16]) {
  if (spank_getenv(spank, "SLURM_RESTART_COUNT", restarts, 16) != ESPANK_SUCCESS) {
    strcpy(restarts, "0");
  }
}

typedef int (*prepend_t)(spank_t, int, const char**);

/* Slurm 23.11 and newer; NULL in older ones. */
static prepend_t find_prepend(void) {
  return (prepend_t)dlsym(RTLD_DEFAULT, "spank_prepend_task_argv");
}

/* Returns false if a requeued program is never restored in a pid namespace of its own. Where Slurm
 * itself starts the launcher, it may change the SELinux context of the task after task_init, and
 * the init process would keep that of slurmstepd. */
static bool may_want_namespace(void) {
  if (find_prepend() != NULL && access("/sys/fs/selinux/enforce", F_OK) == 0) return false;
  return !lists(options, "nopidns", strlen("nopidns"));
}

static bool was_requeued(spank_t spank) {
  char restarts[16];
  read_restarts(spank, restarts);
  return strcmp(restarts, "0") != 0;
}

/* Returns true if task_init may make the namespace. The batch script has no SLURM_RESTART_COUNT
 * then. */
static bool needs_admin_right(spank_t spank) {
  uint32_t step = 0;
  return may_want_namespace() &&
         (was_requeued(spank) || spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
          step == SLURM_BATCH_SCRIPT);
}

/* The capabilities of the launcher. If slurmd lacks CAP_NET_ADMIN, so does the launcher, which then
 * refuses to start the program. */
static uint64_t launcher_rights(void) {
  const bool network = keeps_tcp && lists(options, "tcp=keep", strlen("tcp=keep")) &&
                       prctl(PR_CAPBSET_READ, CAP_NET_ADMIN) == 1;
  return BIT(CAP_CHECKPOINT_RESTORE) | (network ? BIT(CAP_NET_ADMIN) : 0);
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char** words) {
  (void)count;
  (void)words;
  if (!is_wanted(spank)) return 0;
  if (access(launcher, X_OK) != 0) {
    slurm_error("stasis: the task runs without Stasis: %s: %s", launcher, strerror(errno));
    return 0;
  }
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) {
    slurm_error("stasis: the task runs without Stasis: securebits: %s", strerror(errno));
    return 0;
  }
  /* slurmstepd still has to become the user, and task_init to undo the line above. */
  const uint64_t rights = BIT(CAP_SETUID) | BIT(CAP_SETGID) | BIT(CAP_SETPCAP) | launcher_rights();
  may_make_namespaces =
      needs_admin_right(spank) && set_rights(rights | BIT(CAP_SYS_ADMIN), false) == 0;
  if (!may_make_namespaces && set_rights(rights, false) != 0) {
    slurm_error("stasis: the task runs without Stasis: capabilities: %s", strerror(errno));
    prctl(PR_SET_SECUREBITS, 0);
    return 0;
  }
  holds_rights = true;
  return 0;
}

/* Leaves this process, which belongs to the user now, the capabilities of the launcher alone. */
static int keep_launcher_rights(void) {
  const uint64_t rights = launcher_rights();
  if (prctl(PR_SET_SECUREBITS, 0) != 0) return -1; /* needs CAP_SETPCAP */
  if (set_rights(rights, true) != 0) return -1;
  if ((rights & BIT(CAP_NET_ADMIN)) != 0 &&
      prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0) != 0) {
    return -1;
  }
  return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHECKPOINT_RESTORE, 0, 0);
}

static const char kNoNamespace[] = "stasis: the task runs without a pid namespace of its own";

/* Returns the call that failed, with errno, or NULL. */
static const char* prepare_init(int socket) {
  if (setsid() < 0) return "setsid";
  if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) != 0) return "mount /";
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0) {
    return "mount /proc";
  }
  if (keep_launcher_rights() != 0) return "capabilities";
  if (dup2(socket, 3) != 3) return "dup2";
  return NULL;
}

/* In the init process of the new namespaces: becomes stasis-pidns-init with the rights of the
 * launcher. The caller sees that this has failed by the end of the socket. */
static void become_init(const char* program, int socket) {
  char* const words[] = {(char*)program, NULL};
  char* const environment[] = {NULL};
  const int null = open("/dev/null", O_RDWR);
  const char* failed = null < 0 ? "open /dev/null" : prepare_init(socket);
  if (failed == NULL && access(program, X_OK) != 0) failed = program;
  if (failed != NULL) {
    slurm_error("%s: %s: %s", kNoNamespace, failed, strerror(errno));
    _exit(1);
  }
  /* The task's output would not end while this process has it. */
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  syscall(SYS_close_range, 4, ~0U, 0);
  execve(program, words, environment);
  _exit(127);
}

/* Returns NULL when the init process is ready, else why it is not. */
static const char* await_init(int socket) {
  struct pollfd readable = {socket, POLLIN, 0};
  const int found = poll(&readable, 1, 30 * 1000);
  if (found < 0) return strerror(errno);
  if (found == 0) return "its init process is not ready after 30 s";
  char ready = 0;
  return recv(socket, &ready, 1, MSG_DONTWAIT) == 1 ? NULL : "its init process has ended";
}

/* Makes a pid namespace and a mount namespace with its /proc, and starts their init process as a
 * child of the task. It belongs to the user and has no other right than the launcher. Without the
 * namespace the task runs nevertheless. Writes "FD:PID" for the launcher: the socket to the init
 * process, which the launcher inherits; or nothing. */
static void make_namespace(spank_t spank, char text[32]) {
  text[0] = '\0';
  if (!may_want_namespace() || !was_requeued(spank)) return;
  char program[PATH_SIZE];
  int ends[2];
  const char* name = strrchr(launcher, '/');
  if (name == NULL || snprintf(program, sizeof program, "%.*s/stasis-pidns-init",
                               (int)(name - launcher), launcher) >= (int)sizeof program) {
    slurm_error("%s: the launcher's path is too long or has no folder", kNoNamespace);
    return;
  }
  if (!may_make_namespaces) {
    slurm_error("%s: slurmd lacks CAP_SYS_ADMIN", kNoNamespace);
    return;
  }
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) {
    slurm_error("%s: socketpair: %s", kNoNamespace, strerror(errno));
    return;
  }
  /* The task has one thread. */
  const pid_t init = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
  if (init == 0) become_init(program, ends[1]);
  const int error = errno;
  close(ends[1]);
  if (init < 0) {
    slurm_error("%s: clone: %s", kNoNamespace, strerror(error));
    close(ends[0]);
    return;
  }
  const char* failed = await_init(ends[0]);
  if (failed == NULL) {
    snprintf(text, 32, "%d:%d", ends[0], (int)init);
    return;
  }
  slurm_error("%s: %s", kNoNamespace, failed);
  kill(init, SIGKILL);
  close(ends[0]);
  while (waitpid(init, NULL, 0) < 0 && errno == EINTR) {
  }
}

/* Before Slurm 23.11: renames the variables of the dynamic loader, so that no library of the user's
 * choice is loaded into a program that has the launcher's rights. stasis-step gives them back to
 * the task's program. */
static int rename_loader_variables(spank_t spank) {
  char** environment = NULL;
  if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS) return -1;
  size_t names = 0;
  for (char** variable = environment; *variable != NULL; ++variable) ++names;
  char** found = calloc(names + 1, sizeof *found);
  if (found == NULL) return -1;
  names = 0;
  for (char** variable = environment; *variable != NULL; ++variable) {
    if (strncmp(*variable, "LD_", 3) != 0) continue;
    found[names] = strdup(*variable);
    if (found[names] == NULL) return -1;
    ++names;
  }
  int result = 0;
  for (size_t i = 0; i < names && result == 0; ++i) {
    char* equals = strchr(found[i], '=');
    if (equals == NULL) continue;
    *equals = '\0';
    char* renamed = NULL;
    if (asprintf(&renamed, "STASIS_TASK_%s", found[i]) < 0) return -1;
    if (spank_setenv(spank, renamed, equals + 1, 1) != ESPANK_SUCCESS ||
        spank_unsetenv(spank, found[i]) != ESPANK_SUCCESS) {
      result = -1;
    }
    free(renamed);
  }
  for (size_t i = 0; i < names; ++i) free(found[i]);
  free(found);
  return result;
}

/* Writes "LOCAL/COUNT/NODE", the place of the task in its step, if the tasks of the step on a node
 * are one target; otherwise nothing. */
static int write_place(spank_t spank, bool is_script, char place[NAME_SIZE]) {
  uint32_t count = 0, node = 0;
  int local = 0;
  place[0] = '\0';
  if (is_script || !lists(options, "together", strlen("together"))) return 0;
  if (spank_get_item(spank, S_TASK_ID, &local) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &count) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS) {
    return -1;
  }
  snprintf(place, NAME_SIZE, "%d/%u/%u", local, count, node);
  return 0;
}

/* Makes the launcher the first word of the task's command line. */
static int put_launcher_in_front(spank_t spank, const char* pidns) {
  uint32_t job = 0, step = 0, task = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_TASK_GLOBAL_ID, &task) != ESPANK_SUCCESS) {
    return -1;
  }
  char restarts[16];
  read_restarts(spank, restarts);
  const bool is_script = step == SLURM_BATCH_SCRIPT;
  char name[NAME_SIZE];
  if (is_script) {
    snprintf(name, sizeof name, "slurm-%u.batch", job);
  } else {
    snprintf(name, sizeof name, "slurm-%u.%u.%u", job, step, task);
  }
  char place[NAME_SIZE];
  if (write_place(spank, is_script, place) != 0) return -1;
  const char* front[14] = {launcher, "--job", name, "--restarts", restarts, "--options", options};
  int words = 7;
  if (is_script) front[words++] = "--script";
  if (given == NOT_GIVEN) front[words++] = "--default";
  if (*pidns != '\0') {
    front[words++] = "--pidns";
    front[words++] = pidns;
  }
  if (*place != '\0') {
    front[words++] = "--member";
    front[words++] = place;
  }
  front[words++] = "--";
  /* Slurm then starts the program after its other preparations. */
  const prepend_t prepend = find_prepend();
  if (prepend != NULL) return prepend(spank, words, front) == ESPANK_SUCCESS ? 0 : -1;

  char **argv = NULL, **environment = NULL;
  int argc = 0;
  if (spank_get_item(spank, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS) {
    return -1;
  }
  const char** all = calloc((size_t)(words + argc + 1), sizeof *all);
  if (all == NULL) return -1;
  memcpy(all, front, (size_t)words * sizeof *all);
  memcpy(all + words, argv, (size_t)argc * sizeof *all);
  execve(launcher, (char* const*)all, environment);
  slurm_error("stasis: cannot start %s: %s", launcher, strerror(errno));
  free(all);
  return -1;
}

int slurm_spank_task_init(spank_t spank, int count, char** words) {
  (void)count;
  (void)words;
  if (!holds_rights) return 0;
  char pidns[32];
  make_namespace(spank, pidns);
  /* From here on an error ends the task: its environment is not the user's any more, and it must
   * not run with a right that it should not have. Slurm ignores errors of an optional plugin. */
  if (keep_launcher_rights() != 0) {
    slurm_error("stasis: cannot set the capabilities of the task: %s", strerror(errno));
    _exit(1);
  }
  /* Slurm 23.11 and newer runs TaskProlog before it starts the launcher. The script needs these
   * variables and may set them, so stasis-step renames them. */
  if ((find_prepend() == NULL && rename_loader_variables(spank) != 0) ||
      put_launcher_in_front(spank, pidns) != 0) {
    slurm_error("stasis: cannot prepare the task");
    _exit(1);
  }
  return 0;
}

/* Returns the variables that name the folders of Stasis. No other variable of the user may have an
 * effect on a command outside of the job's limits. */
static char** variables_of_stasis(char** environment) {
  static const char* const wanted[] = {"STASIS_", "XDG_", "HOME=", "PATH="};
  size_t names = 0;
  while (environment[names] != NULL) ++names;
  char** kept = calloc(names + 1, sizeof *kept);
  if (kept == NULL) return NULL;
  for (size_t i = 0, at = 0; i < names; ++i) {
    for (size_t j = 0; j < sizeof wanted / sizeof *wanted; ++j) {
      if (strncmp(environment[i], wanted[j], strlen(wanted[j])) == 0) kept[at++] = environment[i];
    }
  }
  return kept;
}

static void on_alarm(int signal) { (void)signal; } /* interrupts waitpid() */

static void kill_children(void) {
  FILE* children = fopen("/proc/thread-self/children", "re");
  if (children == NULL) return;
  for (int pid = 0; fscanf(children, "%d", &pid) == 1;) kill(pid, SIGKILL);
  fclose(children);
}

/* Becomes the user and runs a command of Stasis. */
static void exec_stasis(char* const* words, uid_t user, gid_t group, char** environment) {
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  syscall(SYS_close_range, 3, ~0U, 0); /* those of slurmstepd */
  if (setgroups(1, &group) == 0 && setresgid(group, group, group) == 0 &&
      setresuid(user, user, user) == 0 && chdir("/") == 0) {
    execve(words[0], words, environment);
  }
  _exit(127);
}

/* Runs ROOT/bin/stasis with a user's rights. A step that does not end would drain its node, and
 * slurmstepd may have left the control group of the job. Therefore the command has 20 seconds, and
 * no process that it has started outlives it. */
static void run_stasis(const char* path, const char* word1, const char* word2, const char* word3,
                       uid_t user, gid_t group, char** environment) {
  char* const words[] = {(char*)path,  "-q",         "--no-daemon", (char*)word1,
                         (char*)word2, (char*)word3, NULL};
  const pid_t keeper = fork();
  if (keeper == 0) {
    const struct sigaction interrupt = {.sa_handler = on_alarm};
    sigset_t none;
    sigemptyset(&none);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || sigaction(SIGALRM, &interrupt, NULL) != 0)
      _exit(1);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const pid_t child = fork(); /* without the alarm */
    if (child == 0) exec_stasis(words, user, group, environment);
    alarm(20);
    if (child > 0) waitpid(child, NULL, 0);
    alarm(5);
    do {
      kill_children();
    } while (waitpid(-1, NULL, 0) > 0);
    _exit(0);
  }
  while (keeper > 0 && waitpid(keeper, NULL, 0) < 0 && errno == EINTR) {
  }
}

/* A task that was killed, such as one that was cancelled while it was suspended, has left its GPU
 * data in memory of the node, which no job is charged for any more. */
int slurm_spank_exit(spank_t spank, int count, char** words) {
  (void)count;
  (void)words;
  if (spank_context() != S_CTX_REMOTE || !is_wanted(spank)) return 0;
  char gpus[NAME_SIZE], path[PATH_SIZE];
  if (spank_getenv(spank, "SLURM_JOB_GPUS", gpus, sizeof gpus) != ESPANK_SUCCESS &&
      spank_getenv(spank, "SLURM_STEP_GPUS", gpus, sizeof gpus) != ESPANK_SUCCESS) {
    return 0;
  }
  static const char kLauncher[] = "/libexec/stasis-step";
  const size_t length = strlen(launcher), ending = sizeof kLauncher - 1;
  if (length < ending || strcmp(launcher + length - ending, kLauncher) != 0) return 0;
  snprintf(path, sizeof path, "%.*s/bin/stasis", (int)(length - ending), launcher);
  uid_t user = 0;
  gid_t group = 0;
  char** environment = NULL;
  if (spank_get_item(spank, S_JOB_UID, &user) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_GID, &group) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS) {
    return 0;
  }
  char** kept = variables_of_stasis(environment);
  if (kept == NULL) return 0;
  run_stasis(path, "recover", NULL, NULL, user, group, kept);
  run_stasis(path, "arena", "free", "--keep-of-running", user, group, kept);
  free(kept);
  return 0;
}
