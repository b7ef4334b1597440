// Preloaded into `stasis` and `cp`: records, in order, every change to files below one directory,
// with the bytes, and every fsync. From the record disk.py derives the possible contents of a disk
// after a power failure.
//
//   STASIS_RECORD_ROOT   the directory, as its real path
//   STASIS_RECORD_LOG    records are appended here: struct Record, two paths, data
//   STASIS_RECORD_KILL   N: kill -9 before the N-th fsync below the directory
//   STASIS_RECORD_EIO    N: only the N-th fsync below the directory fails
//   STASIS_RECORD_EIO_OF PATH: only the first fsync of that directory fails
//   STASIS_RECORD_FULL   N: the disk is full from the N-th call that allocates space there on
//   STASIS_RECORD_SLOW   N: the disk writes N MB/s
//
// One call at a time is executed and recorded, so that the order of the log is the order on the
// disk. Files written by other programs (CRIU) are read when they are renamed or linked.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum Kind {
  kCreate = 1,
  kMkdir,
  kLink,
  kRename,
  kRemove,
  kWrite,
  kTruncate,
  kAllocate,
  kPunch,
  kSync,
  kSaid,
  kContent
};

struct Record {
  uint32_t magic;
  uint32_t kind;
  uint64_t inode;
  uint64_t offset;
  uint64_t length;
  uint32_t path_bytes;
  uint32_t other_bytes;  // length of the second path
  uint64_t data_bytes;
};

static const uint32_t kMagic = 0x31434552;
static char root[4096];
static size_t root_bytes;
static int log_fd = -1;
static pid_t main_pid = 0;
static int megabytes_per_second = 0;
// Shared with forked children, because a child writes the image.
struct Shared {
  pthread_mutex_t mutex;
  int syncs_left;
  int syncs_until_eio;
  ino_t eio_of;
  int room_left;
};
static struct Shared* shared;

#define REAL(name) ((__typeof__(&name))Real(#name))

static void* Real(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) abort();
  return found;
}

__attribute__((constructor)) static void Begin(void) {
  const char* folder = getenv("STASIS_RECORD_ROOT");
  const char* log = getenv("STASIS_RECORD_LOG");
  const char* name = program_invocation_short_name;
  if (folder == NULL || log == NULL || (strcmp(name, "stasis") != 0 && strcmp(name, "cp") != 0))
    return;
  main_pid = getpid();
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) abort();
  *shared = (struct Shared){.syncs_left = -1, .syncs_until_eio = -1, .room_left = -1};
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&shared->mutex, &attributes);
  root_bytes = (size_t)snprintf(root, sizeof root, "%s", folder);
  int fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500);
  if (log_fd < 0) abort();
  close(fd);
  if (getenv("STASIS_RECORD_KILL") != NULL)
    shared->syncs_left = atoi(getenv("STASIS_RECORD_KILL")) - 1;
  if (getenv("STASIS_RECORD_EIO") != NULL)
    shared->syncs_until_eio = atoi(getenv("STASIS_RECORD_EIO")) - 1;
  if (getenv("STASIS_RECORD_SLOW") != NULL)
    megabytes_per_second = atoi(getenv("STASIS_RECORD_SLOW"));
  struct stat of;
  if (getenv("STASIS_RECORD_EIO_OF") != NULL && stat(getenv("STASIS_RECORD_EIO_OF"), &of) == 0)
    shared->eio_of = of.st_ino;
  if (getenv("STASIS_RECORD_FULL") != NULL)
    shared->room_left = atoi(getenv("STASIS_RECORD_FULL")) - 1;
}

static void WriteLog(const void* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t written = REAL(write)(log_fd, data, bytes);
    if (written <= 0) abort();
    data = (const char*)data + written;
    bytes -= (size_t)written;
  }
}

static void Put(enum Kind kind, uint64_t inode, uint64_t offset, uint64_t length, const char* path,
                const char* other, const void* data, uint64_t data_bytes) {
  struct Record record = {
      kMagic,    kind, inode, offset, length, (uint32_t)strlen(path), (uint32_t)strlen(other),
      data_bytes};
  WriteLog(&record, sizeof record);
  WriteLog(path, record.path_bytes);
  WriteLog(other, record.other_bytes);
  if (data != NULL) WriteLog(data, data_bytes);
}

static int IsBelow(const char* path) {
  return log_fd >= 0 && strncmp(path, root, root_bytes) == 0 &&
         (path[root_bytes] == '/' || path[root_bytes] == '\0');
}

// Returns the absolute path of `name` in `folder_fd`.
static int Absolute(int folder_fd, const char* name, char* out) {
  if (log_fd < 0) return 0;
  if (name[0] == '/') {
    snprintf(out, 4096, "%s", name);
    return IsBelow(out);
  }
  char link[64];
  char folder[4096];
  snprintf(link, sizeof link, folder_fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
           folder_fd);
  ssize_t bytes = readlink(link, folder, sizeof folder - 1);
  if (bytes < 0) return 0;
  folder[bytes] = '\0';
  if (strlen(folder) + strlen(name) + 2 > 4096) abort();
  strcpy(out, folder);
  strcat(out, "/");
  strcat(out, name);
  return IsBelow(out);
}

static int IsOurs(int fd, struct stat* st) {
  if (log_fd < 0) return 0;
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t bytes = readlink(link, path, sizeof path - 1);
  if (bytes < 0) return 0;
  path[bytes] = '\0';
  return IsBelow(path) && fstat(fd, st) == 0 && (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode));
}

static uint64_t InodeAt(const char* path, int* is_folder) {
  struct stat st;
  if (lstat(path, &st) != 0) return 0;
  if (is_folder != NULL) *is_folder = S_ISDIR(st.st_mode);
  return st.st_ino;
}

// Records a file's current content: for calls whose bytes are not visible, and for files written by
// other programs.
static void PutContent(const char* path) {
  int fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) abort();
  char* data = malloc((size_t)st.st_size + 1);
  size_t done = 0;
  while (done < (size_t)st.st_size) {
    ssize_t got = pread(fd, data + done, (size_t)st.st_size - done, (off_t)done);
    if (got <= 0) abort();
    done += (size_t)got;
  }
  Put(kContent, st.st_ino, 0, 0, path, "", data, done);
  free(data);
  close(fd);
}

static void PutContentOf(int fd) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  PutContent(path);
}

// Requires the lock. The first call on the full disk still writes half of its data.
static int IsFull(size_t* bytes) {
  if (shared->room_left < 0) return 0;
  if (shared->room_left-- > 0) return 0;
  shared->room_left = 0;
  static int met = 0;
  if (bytes != NULL && !met && *bytes >= 2 * 4096) {
    met = 1;
    *bytes = *bytes / 2 / 4096 * 4096;
    return 0;
  }
  met = 1;
  errno = ENOSPC;
  return 1;
}

#define LOCK pthread_mutex_lock(&shared->mutex)
#define UNLOCK pthread_mutex_unlock(&shared->mutex)
// After the call: records it if `ok`; keeps the call's errno.
#define DONE(ok, record) \
  do {                   \
    int number = errno;  \
    if (ok) record;      \
    UNLOCK;              \
    errno = number;      \
  } while (0)

static int Opened(int fd, const char* path, int flags, int was_there) {
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) return fd;
  if (!was_there) {
    Put(kCreate, st.st_ino, 0, 0, path, "", NULL, 0);
  } else if ((flags & O_TRUNC) != 0) {
    Put(kTruncate, st.st_ino, 0, 0, "", "", NULL, 0);
  }
  return fd;
}

#define OPEN(fd_of_folder, call)                                                  \
  char where[4096];                                                               \
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || !Absolute(fd_of_folder, path, where)) \
    return (int)(call);                                                           \
  LOCK;                                                                           \
  int was_there = InodeAt(where, NULL) != 0;                                      \
  int fd = !was_there && IsFull(NULL) ? -1 : (int)(call);                         \
  DONE(1, Opened(fd, where, flags, was_there));                                   \
  return fd

static mode_t Mode(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}
#define MODE                            \
  va_list arguments;                    \
  va_start(arguments, flags);           \
  mode_t mode = Mode(flags, arguments); \
  va_end(arguments)

int open(const char* path, int flags, ...) {
  MODE;
  OPEN(AT_FDCWD, REAL(open)(path, flags, mode));
}
int open64(const char* path, int flags, ...) {
  MODE;
  OPEN(AT_FDCWD, REAL(open)(path, flags, mode));
}
int openat(int folder, const char* path, int flags, ...) {
  MODE;
  OPEN(folder, REAL(openat)(folder, path, flags, mode));
}
int openat64(int folder, const char* path, int flags, ...) {
  MODE;
  OPEN(folder, REAL(openat)(folder, path, flags, mode));
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  long (*real)(long, ...) = (long (*)(long, ...))Real("syscall");
  if (number != SYS_openat2) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const char* path = (const char*)a[1];
  int flags = (int)((const struct open_how*)a[2])->flags;
  OPEN((int)a[0], real(number, a[0], a[1], a[2], a[3]));
}

int mkdirat(int folder, const char* path, mode_t mode) {
  char where[4096];
  if (!Absolute(folder, path, where)) return REAL(mkdirat)(folder, path, mode);
  LOCK;
  int result = IsFull(NULL) ? -1 : REAL(mkdirat)(folder, path, mode);
  DONE(result == 0, Put(kMkdir, InodeAt(where, NULL), 0, 0, where, "", NULL, 0));
  return result;
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static void PutName(enum Kind kind, const char* from, const char* to) {
  int is_folder = 0;
  uint64_t inode = InodeAt(to, &is_folder);
  if (!is_folder) PutContent(to);
  Put(kind, inode, 0, 0, from, to, NULL, 0);
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  char a[4096];
  char b[4096];
  if (!Absolute(from_folder, from, a) | !Absolute(to_folder, to, b)) {
    return REAL(linkat)(from_folder, from, to_folder, to, flags);
  }
  LOCK;
  int result = IsFull(NULL) ? -1 : REAL(linkat)(from_folder, from, to_folder, to, flags);
  DONE(result == 0, PutName(kLink, a, b));
  return result;
}
int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  char a[4096];
  char b[4096];
  if (!Absolute(from_folder, from, a) | !Absolute(to_folder, to, b)) {
    return REAL(renameat2)(from_folder, from, to_folder, to, flags);
  }
  LOCK;
  int result = REAL(renameat2)(from_folder, from, to_folder, to, flags);
  DONE(result == 0, PutName(kRename, a, b));
  return result;
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return renameat2(from_folder, from, to_folder, to, 0);
}
int rename(const char* from, const char* to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char* path, int flags) {
  char where[4096];
  if (!Absolute(folder, path, where)) return REAL(unlinkat)(folder, path, flags);
  LOCK;
  int result = REAL(unlinkat)(folder, path, flags);
  DONE(result == 0, Put(kRemove, 0, 0, 0, where, "", NULL, 0));
  return result;
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  int result = unlink(path);
  return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

static void Said(int fd) {
  struct stat st;
  if (log_fd < 0) return;
  if (fd != STDOUT_FILENO && (fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode))) return;
  LOCK;
  Put(kSaid, 0, 0, 0, "", "", NULL, 0);
  UNLOCK;
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  struct stat st;
  if (!IsOurs(fd, &st)) return REAL(pwrite)(fd, data, bytes, offset);
  LOCK;
  ssize_t done = IsFull(&bytes) ? -1 : REAL(pwrite)(fd, data, bytes, offset);
  if (megabytes_per_second > 0 && done > 0) usleep((useconds_t)(done / megabytes_per_second));
  DONE(done > 0,
       Put(kWrite, st.st_ino, (uint64_t)offset, (uint64_t)done, "", "", data, (uint64_t)done));
  return done;
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) {
  return pwrite(fd, data, bytes, offset);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  struct stat st;
  Said(fd);
  if (!IsOurs(fd, &st)) return REAL(write)(fd, data, bytes);
  LOCK;
  off_t offset = (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? st.st_size : lseek(fd, 0, SEEK_CUR);
  ssize_t done = IsFull(&bytes) ? -1 : REAL(write)(fd, data, bytes);
  DONE(done > 0,
       Put(kWrite, st.st_ino, (uint64_t)offset, (uint64_t)done, "", "", data, (uint64_t)done));
  return done;
}

#define WHOLE(target, call)              \
  struct stat st;                        \
  if (!IsOurs(target, &st)) return call; \
  LOCK;                                  \
  ssize_t done = call;                   \
  DONE(done > 0, PutContentOf(target));  \
  return done

ssize_t writev(int fd, const struct iovec* parts, int count) {
  Said(fd);
  WHOLE(fd, REAL(writev)(fd, parts, count));
}
ssize_t sendfile(int out, int in, off_t* offset, size_t bytes);
ssize_t sendfile(int out, int in, off_t* offset, size_t bytes) {
  WHOLE(out, REAL(sendfile)(out, in, offset, bytes));
}
ssize_t copy_file_range(int in, off64_t* in_at, int out, off64_t* out_at, size_t bytes,
                        unsigned flags) {
  WHOLE(out, REAL(copy_file_range)(in, in_at, out, out_at, bytes, flags));
}

ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  Said(fd);
  return REAL(send)(fd, data, bytes, flags);
}
ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  Said(fd);
  return REAL(sendmsg)(fd, message, flags);
}

int ftruncate(int fd, off_t length) {
  struct stat st;
  if (!IsOurs(fd, &st)) return REAL(ftruncate)(fd, length);
  LOCK;
  int result = REAL(ftruncate)(fd, length);
  DONE(result == 0, Put(kTruncate, st.st_ino, 0, (uint64_t)length, "", "", NULL, 0));
  return result;
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
  struct stat st;
  if (!IsOurs(fd, &st)) return REAL(fallocate)(fd, mode, offset, length);
  enum Kind kind = (mode & FALLOC_FL_PUNCH_HOLE) != 0 ? kPunch : kAllocate;
  if ((mode & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) != 0) abort();
  LOCK;
  int result = kind == kAllocate && IsFull(NULL) ? -1 : REAL(fallocate)(fd, mode, offset, length);
  int records = result == 0 && (kind == kPunch || (mode & FALLOC_FL_KEEP_SIZE) == 0);
  DONE(records, Put(kind, st.st_ino, (uint64_t)offset, (uint64_t)length, "", "", NULL, 0));
  return result;
}
int fallocate64(int fd, int mode, off_t offset, off_t length) {
  return fallocate(fd, mode, offset, length);
}

static int Sync(int fd, int (*real)(int)) {
  struct stat st;
  if (!IsOurs(fd, &st)) return real(fd);
  LOCK;
  if (shared->syncs_left-- == 0) {
    // The child that writes an image dies with its parent.
    kill(main_pid, SIGKILL);
    kill(getpid(), SIGKILL);
  }
  int fails = (shared->syncs_until_eio >= 0 && shared->syncs_until_eio-- == 0) ||
              (shared->eio_of != 0 && st.st_ino == shared->eio_of);
  if (fails) shared->eio_of = 0;
  int result = fails ? -1 : real(fd);
  if (fails) errno = EIO;
  DONE(result == 0, Put(kSync, st.st_ino, 0, 0, "", "", NULL, 0));
  return result;
}
// Keeps the log open in a child that closes everything.
int close_range(unsigned first, unsigned last, int flags) {
  const unsigned log = (unsigned)log_fd;
  if (log_fd < 0 || log < first || log > last) return REAL(close_range)(first, last, flags);
  if (log > first && REAL(close_range)(first, log - 1, flags) != 0) return -1;
  return log < last ? REAL(close_range)(log + 1, last, flags) : 0;
}

int fsync(int fd) { return Sync(fd, REAL(fsync)); }
int fdatasync(int fd) { return Sync(fd, REAL(fdatasync)); }
