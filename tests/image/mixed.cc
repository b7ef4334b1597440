// mixed [--memory SIZE]: CPU memory of every kind that a restore treats differently, filled with
// random words, without a GPU: many private mappings of --memory in all, read-only, executable,
// locked, advised and shared ones, a heap, the stacks of threads, and a child that shares memory
// with its parent until one of them writes to it. Parent and child compare every word in each
// round. Threads also check what the kernel keeps in their memory: the processor number of rseq
// and, at the end, that their ids are cleared and that robust locks are released.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <vector>

#include "common/arithmetic.h"
#include "common/protocol.h"

namespace workloads {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kStackBytes = 3 * kMiB;  // that a thread uses
constexpr int kThreads = 3;

struct Area {
  const char* what;
  uint64_t* words;
  uint64_t bytes;
  uint64_t seed;
};

void* MustMap(uint64_t bytes, int flags = MAP_PRIVATE | MAP_ANONYMOUS) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) Fail("there is no memory: %s", strerror(errno));
  return memory;
}

void Fill(uint64_t* words, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes / sizeof *words; ++i) words[i] = RandomWord(seed, i);
}

// Returns the first word that differs, or -1.
int64_t Differs(const uint64_t* words, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes / sizeof *words; ++i) {
    if (words[i] != RandomWord(seed, i)) return static_cast<int64_t>(i);
  }
  return -1;
}

// Parent and child use this shared page.
struct Shared {
  std::atomic<uint64_t> asked;     // the child shall check for the n-th time
  std::atomic<uint64_t> answered;  // it has
  std::atomic<int> failed;         // number of the area, plus one
};

class Mixed : public Workload {
 public:
  void SetUp(const Options& options) override {
    for (uint64_t done = 0, i = 0; done < options.memory_bytes; ++i) {
      const uint64_t bytes = (1 + i % 6) * kMiB + (i % 3) * kPage;
      Add("private", bytes);
      done += bytes;
    }
    Protect(Add("read-only", 2 * kMiB), PROT_READ);
    Protect(Add("executable", 2 * kMiB), PROT_READ | PROT_WRITE | PROT_EXEC);
    Area& locked = Add("locked", 2 * kMiB);
    if (::mlock(locked.words, locked.bytes) != 0) Fail("mlock: %s", strerror(errno));
    Advise(Add("huge", 6 * kMiB), MADV_HUGEPAGE);
    Advise(Add("not for children", 2 * kMiB), MADV_DONTFORK);
    Advise(Add("not for core dumps", 2 * kMiB), MADV_DONTDUMP);
    zeros_ = static_cast<char*>(MustMap(4 * kMiB));
    memset(zeros_, 1, 4 * kMiB);
    memset(zeros_, 0, 4 * kMiB);
    auto* heap = static_cast<uint64_t*>(::sbrk(3 * kMiB));
    heap = reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(heap) + 7) / 8 * 8);
    Use("heap", heap, 3 * kMiB - 8);
    Use("shared", static_cast<uint64_t*>(MustMap(2 * kMiB, MAP_SHARED | MAP_ANONYMOUS)), 2 * kMiB);
    shared_ = static_cast<Shared*>(MustMap(kPage, MAP_SHARED | MAP_ANONYMOUS));
    inherited_ = areas_.size();
    StartChild();
    // After the fork, so that the child does not have these.
    for (int i = 0; i < 4; ++i) Add("of the parent only", 3 * kMiB);
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < kThreads; ++i) {
      pthread_mutex_init(&locks_[i], &robust);
      if (pthread_create(&threads_[i], nullptr, Thread, new Start{this, i}) != 0) Fail("no thread");
    }
    while (ready_ < kThreads) ::usleep(1000);
  }

  uint64_t Round(uint64_t round) override {
    Check();
    return round;
  }
  void Verify() override {
    Check();
    ExpectShared();
    // The threads end without unlocking their locks.
    stop_ = true;
    for (int i = 0; i < kThreads; ++i) {
      if (pthread_join(threads_[i], nullptr) != 0) Fail("a thread was not joined");
      if (pthread_mutex_lock(&locks_[i]) != EOWNERDEAD) Fail("a robust lock was not released");
    }
    if (thread_failed_ != 0)
      Fail("the memory of a thread is not what it was (%d)", +thread_failed_);
    shared_->asked = UINT64_MAX;
    int status = 0;
    if (::waitpid(child_, &status, 0) != child_ || status != 0)
      Fail("the child ends with %d", status);
  }
  void Sabotage() override { areas_[0].words[7] ^= 1; }
  void TearDown() override {}

 private:
  struct Start {
    Mixed* self;
    int number;
  };

  Area& Use(const char* what, uint64_t* words, uint64_t bytes) {
    areas_.push_back({what, words, bytes, areas_.size() + 1});
    Fill(words, bytes, areas_.back().seed);
    return areas_.back();
  }
  // An inaccessible page keeps the kernel from joining mappings.
  Area& Add(const char* what, uint64_t bytes) {
    auto* memory = static_cast<char*>(MustMap(bytes + 2 * kPage));
    ::mprotect(memory, kPage, PROT_NONE);
    ::mprotect(memory + kPage + bytes, kPage, PROT_NONE);
    return Use(what, reinterpret_cast<uint64_t*>(memory + kPage), bytes);
  }
  void Protect(const Area& area, int prot) {
    if (::mprotect(area.words, area.bytes, prot) != 0) Fail("mprotect: %s", strerror(errno));
  }
  void Advise(const Area& area, int advice) { (void)::madvise(area.words, area.bytes, advice); }

  void Check() {
    ++shared_->asked;
    for (const Area& area : areas_) {
      const int64_t word = Differs(area.words, area.bytes, area.seed);
      if (word >= 0) Fail("word %ld of the %s memory is wrong", word, area.what);
    }
    for (uint64_t i = 0; i < 4 * kMiB; ++i) {
      if (zeros_[i] != 0) Fail("what was zero is not");
    }
    while (shared_->answered < shared_->asked) ::usleep(1000);
    if (shared_->failed != 0) Fail("the child's memory %d is wrong", shared_->failed - 1);
    if (thread_failed_ != 0)
      Fail("the memory of a thread is not what it was (%d)", +thread_failed_);
  }

  void StartChild() {
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ != 0) return;
    const uint64_t own_bytes = 5 * kMiB, own_seed = 4711;
    auto* own = static_cast<uint64_t*>(MustMap(own_bytes));
    Fill(own, own_bytes, own_seed);
    // Change some pages of one mapping that the parent has too.
    for (uint64_t i = 0; i < 20; ++i) areas_[1].words[i * kPage * 3 / sizeof(uint64_t)] = i;
    for (;;) {
      while (shared_->answered >= shared_->asked) {
        if (::getppid() != parent) ::_exit(1);
        ::usleep(1000);
      }
      if (shared_->asked == UINT64_MAX) ::_exit(0);
      CheckInChild(own, own_bytes, own_seed);
      shared_->answered = shared_->asked.load();
    }
  }
  void CheckInChild(const uint64_t* own, uint64_t own_bytes, uint64_t own_seed) {
    if (Differs(own, own_bytes, own_seed) >= 0) shared_->failed = 1001;
    for (size_t n = 0; n < inherited_; ++n) {
      const Area& area = areas_[n];
      if (strcmp(area.what, "not for children") == 0) continue;
      for (uint64_t i = 0; i < area.bytes / sizeof(uint64_t); ++i) {
        const uint64_t step = kPage * 3 / sizeof(uint64_t);
        const bool changed = n == 1 && i % step == 0 && i / step < 20;
        if (area.words[i] != (changed ? i / step : RandomWord(area.seed, i))) {
          shared_->failed = static_cast<int>(n) + 1;
        }
      }
    }
  }

  // Memory that parent and child share is counted once, also after a restore.
  void ExpectShared() {
    uint64_t kib = 0, all = 0;
    for (size_t n = 2; n < inherited_; ++n) {
      if (strcmp(areas_[n].what, "private") != 0) continue;
      kib += SharedKib(areas_[n].words);
      all += areas_[n].bytes / 1024;
    }
    if (kib * 10 < all * 9) Fail("only %lu of %lu KiB are shared", kib, all);
  }
  static uint64_t SharedKib(const void* address) {
    FILE* file = ::fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false;
    uint64_t sum = 0;
    while (file != nullptr && ::fgets(line, sizeof line, file) != nullptr) {
      unsigned long begin, end, kib;
      char dash;
      if (::sscanf(line, "%lx%c%lx ", &begin, &dash, &end) == 3 && dash == '-') {
        inside = begin <= reinterpret_cast<uintptr_t>(address) &&
                 reinterpret_cast<uintptr_t>(address) < end;
      } else if (inside && (::sscanf(line, "Shared_Clean: %lu", &kib) == 1 ||
                            ::sscanf(line, "Shared_Dirty: %lu", &kib) == 1)) {
        sum += kib;
      }
    }
    if (file != nullptr) ::fclose(file);
    return sum;
  }

  static void* Thread(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    delete static_cast<Start*>(argument);
    start.self->RunThread(start.number);
    return nullptr;
  }
  void RunThread(int number) {
    static thread_local uint64_t in_tls[512];
    uint64_t on_stack[kStackBytes / sizeof(uint64_t)];
    const uint64_t seed = 9000 + static_cast<uint64_t>(number);
    Fill(in_tls, sizeof in_tls, seed);
    Fill(on_stack, sizeof on_stack, seed);
    pthread_mutex_lock(&locks_[number]);
    ++ready_;
    while (!stop_) {
      const int cpu = number % static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(cpu, &only);
      // glibc reads the number that the kernel writes to the thread's rseq area.
      if (::sched_setaffinity(0, sizeof only, &only) == 0 && ::sched_getcpu() != cpu)
        thread_failed_ = 1;
      if (Differs(in_tls, sizeof in_tls, seed) >= 0) thread_failed_ = 2;
      if (Differs(on_stack, sizeof on_stack, seed) >= 0) thread_failed_ = 3;
      ::usleep(5000);
    }
  }

  std::vector<Area> areas_;
  size_t inherited_ = 0;  // areas that the child has too
  char* zeros_ = nullptr;
  Shared* shared_ = nullptr;
  pid_t child_ = 0;
  pthread_t threads_[kThreads] = {};
  pthread_mutex_t locks_[kThreads] = {};
  std::atomic<int> ready_ = 0;
  std::atomic<int> thread_failed_ = 0;
  std::atomic<bool> stop_ = false;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Mixed mixed;
  workloads::Run(mixed, options);
}
