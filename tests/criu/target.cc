// The program that CRIU's tests dump and restore. It sets up the resources that its arguments name,
// and then counts: it writes a fixed-width number to the start of the file argv[1]. At each step it
// checks its resources; if one has changed it writes a message to the file and exits.
//
//   target STATE-FILE [WHAT]...

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

namespace {

int state_fd = -1;
std::string state_path;
std::vector<std::function<void()>> checks;

// Always 16 characters, because CRIU compares the sizes of open files.
void Report(const char* word, long number) {
  char text[32];
  snprintf(text, sizeof text, "%-5.5s%10ld\n", word, number);
  if (pwrite(state_fd, text, 16, 0) != 16) _exit(3);
}

[[noreturn]] void Broken(int line) {
  Report("line", line);
  _exit(2);
}
#define MUST(condition)                 \
  do {                                  \
    if (!(condition)) Broken(__LINE__); \
  } while (0)

void Pause() {
  timespec span{0, 2'000'000};
  nanosleep(&span, nullptr);
}

void Memory() {
  constexpr size_t kSize = 8 << 20;
  auto* bytes = static_cast<unsigned char*>(
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  MUST(bytes != MAP_FAILED);
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<unsigned char>(i * 131 >> 3);
  checks.push_back([bytes] {
    for (size_t i = 0; i < kSize; i += 4093) {
      MUST(bytes[i] == static_cast<unsigned char>(i * 131 >> 3));
    }
  });
}

// Uses much memory, so that a dump takes a while.
void Big() {
  size_t size = 512u << 20;
  if (const char* mib = getenv("TARGET_MIB")) size = strtoul(mib, nullptr, 10) << 20;
  auto* words = static_cast<unsigned long*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  MUST(words != MAP_FAILED);
  for (size_t i = 0; i < size / sizeof *words; i += 512) words[i] = i;
  checks.push_back([words, size] {
    for (size_t i = 0; i < size / sizeof *words; i += 512 * 64) MUST(words[i] == i);
  });
}

void Pipe() {
  int fds[2];
  MUST(pipe(fds) == 0);
  MUST(write(fds[1], "held", 4) == 4);
  checks.push_back([in = fds[0], out = fds[1]] {
    char text[4];
    MUST(read(in, text, 4) == 4 && memcmp(text, "held", 4) == 0);
    MUST(write(out, "held", 4) == 4);
  });
}

void UnixPair() {
  int fds[2];
  MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
  MUST(write(fds[1], "held", 4) == 4);
  checks.push_back([in = fds[0], out = fds[1]] {
    char text[4];
    MUST(read(in, text, 4) == 4 && memcmp(text, "held", 4) == 0);
    MUST(write(out, "held", 4) == 4);
  });
}

void DeletedFile() {
  std::string path = state_path + ".deleted";
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  MUST(fd >= 0 && write(fd, "ghost", 5) == 5 && unlink(path.c_str()) == 0);
  checks.push_back([fd] {
    char text[5];
    MUST(pread(fd, text, 5, 0) == 5 && memcmp(text, "ghost", 5) == 0);
  });
}

void Timer() {
  int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  itimerspec every{{0, 1'000'000}, {0, 1'000'000}};
  MUST(fd >= 0 && timerfd_settime(fd, 0, &every, nullptr) == 0);
  checks.push_back([fd, late = 0]() mutable {
    unsigned long ticks = 0;
    late = read(fd, &ticks, sizeof ticks) == sizeof ticks ? 0 : late + 1;
    MUST(late < 1000);
  });
}

void FileLock() {
  std::string path = state_path + ".lock";
  int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  MUST(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
  checks.push_back([path] {
    int other = open(path.c_str(), O_RDWR | O_CLOEXEC);
    MUST(other >= 0 && flock(other, LOCK_EX | LOCK_NB) != 0);
    close(other);
  });
}

// Sets SO_REUSEADDR, as servers do. Otherwise the port could not be reused while the kernel keeps
// closed connections.
void ReuseAddress(int fd) {
  int on = 1;
  MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
}

int Listen(sockaddr_in* address) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof *address;
  ReuseAddress(fd);
  MUST(fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(address), size) == 0);
  MUST(listen(fd, 4) == 0);
  MUST(getsockname(fd, reinterpret_cast<sockaddr*>(address), &size) == 0);
  return fd;
}

void TcpListen() {
  sockaddr_in address{};
  Listen(&address);
  checks.push_back([address] {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    linger at_once{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    // Does not connect, so only this socket is checked.
    MUST(fd >= 0);
    (void)address;
    close(fd);
  });
}

// Whether both ends must be open after a restore.
enum class Ends { kOpen, kMayBeClosed };

void Connect(Ends ends) {
  sockaddr_in address{};
  int listener = Listen(&address);
  int client = socket(AF_INET, SOCK_STREAM, 0);
  ReuseAddress(client);
  MUST(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  int server = accept(listener, nullptr, nullptr);
  MUST(server >= 0);
  checks.push_back([client, server, ends] {
    char byte = 0;
    const bool sent = send(client, "x", 1, MSG_NOSIGNAL) == 1;
    const bool arrived = sent && read(server, &byte, 1) == 1;
    MUST(arrived ? byte == 'x' : ends == Ends::kMayBeClosed);
  });
}

void TcpConnect() { Connect(Ends::kOpen); }
// For --tcp=close, where CRIU closes one end shortly after the other.
void TcpClosed() { Connect(Ends::kMayBeClosed); }

// A connection in the accept queue of a listener.
void TcpWaiting() {
  sockaddr_in address{};
  Listen(&address);
  int client = socket(AF_INET, SOCK_STREAM, 0);
  MUST(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  close(client);
}

void IoUring() {
  io_uring_params params{};
  MUST(syscall(SYS_io_uring_setup, 4, &params) >= 0);
}

void Userfault() { MUST(syscall(SYS_userfaultfd, O_CLOEXEC) >= 0); }

// Opens the first available character device that CRIU does not support.
void Device() {
  for (const char* path : {"/dev/fuse", "/dev/kvm", "/dev/vhost-net", "/dev/rtc0", "/dev/rtc",
                           "/dev/hwrng", "/dev/cpu_dma_latency", "/dev/userfaultfd"}) {
    if (open(path, O_RDONLY | O_CLOEXEC) >= 0) return;
  }
  MUST(false);
}

void Vsock() {
  MUST(socket(AF_ALG, SOCK_SEQPACKET, 0) >= 0 || socket(AF_VSOCK, SOCK_STREAM, 0) >= 0);
}

// The file's original name is removed, and another name is left.
void Renamed() {
  std::string path = state_path + ".first", other = state_path + ".second";
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  MUST(fd >= 0 && write(fd, "ghost", 5) == 5);
  MUST(link(path.c_str(), other.c_str()) == 0 && unlink(path.c_str()) == 0);
  checks.push_back([fd] {
    char text[5];
    MUST(pread(fd, text, 5, 0) == 5 && memcmp(text, "ghost", 5) == 0);
  });
}

void DeletedBig() {
  std::string path = state_path + ".big";
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  MUST(fd >= 0 && fallocate(fd, 0, 0, 80 << 20) == 0 && unlink(path.c_str()) == 0);
}

// Anonymous inodes that CRIU supports.
void Anon() {
  int event = eventfd(7, EFD_NONBLOCK), poll = epoll_create1(0);
  int inotify = inotify_init1(IN_NONBLOCK);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  int signals = signalfd(-1, &set, SFD_NONBLOCK);
  MUST(event >= 0 && poll >= 0 && inotify >= 0 && signals >= 0);
  epoll_event interest{EPOLLIN, {.fd = event}};
  MUST(epoll_ctl(poll, EPOLL_CTL_ADD, event, &interest) == 0);
  MUST(inotify_add_watch(inotify, "/tmp", IN_ATTRIB) >= 0);
  checks.push_back([event, poll] {
    epoll_event happened;
    MUST(epoll_wait(poll, &happened, 1, 0) == 1 && happened.data.fd == event);
  });
}

void Children() {
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    for (int n = 0; n < 100'000; ++n) Pause();
    _exit(0);
  }
  checks.push_back([child] { MUST(kill(child, 0) == 0 && waitpid(child, nullptr, WNOHANG) == 0); });
}

void Threads() {
  for (int i = 0; i < 3; ++i) {
    pthread_t thread;
    MUST(pthread_create(
             &thread, nullptr,
             [](void*) -> void* {
               while (true) Pause();
             },
             nullptr) == 0);
  }
}

void Zombie() {
  pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  MUST(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
}

// Writes to standard output, even if it is not read.
void Talk() {
  signal(SIGPIPE, SIG_IGN);
  checks.push_back([n = 0L]() mutable { dprintf(STDOUT_FILENO, "line %ld\n", n++); });
}

struct Row {
  const char* name;
  void (*set_up)();
};
constexpr Row kTable[] = {
    {"memory", Memory},
    {"big", Big},
    {"pipe", Pipe},
    {"unix-pair", UnixPair},
    {"deleted", DeletedFile},
    {"timer", Timer},
    {"file-lock", FileLock},
    {"tcp-listen", TcpListen},
    {"tcp-connect", TcpConnect},
    {"tcp-closed", TcpClosed},
    {"children", Children},
    {"threads", Threads},
    {"zombie", Zombie},
    {"talk", Talk},
    {"tcp-waiting", TcpWaiting},
    {"io-uring", IoUring},
    {"userfaultfd", Userfault},
    {"device", Device},
    {"vsock", Vsock},
    {"renamed", Renamed},
    {"deleted-big", DeletedBig},
    {"anon", Anon},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 64;
  state_path = argv[1];
  state_fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (state_fd < 0) return 65;
  for (int i = 2; i < argc; ++i) {
    bool known = false;
    for (const Row& row : kTable) {
      if (strcmp(row.name, argv[i]) == 0) {
        row.set_up();
        known = true;
      }
    }
    MUST(known);
  }
  // Limits the lifetime to some minutes in case the test is killed.
  for (long n = 1; n < 100'000; ++n) {
    for (auto& check : checks) check();
    Report("count", n);
    Pause();
  }
}
