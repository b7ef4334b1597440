// The driver's state, one a process, made by cuInit and never destroyed: stream threads may outlive
// main.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base.h"
#include "broker_client.h"
#include "gate.h"
#include "memory.h"

namespace softgpu {

struct Context;
struct Event;
struct Graph;
struct Module;
struct Stream;

// A device as this process sees it. A restore may move it to another physical one.
struct Device {
  int physical = 0;
  unsigned char uuid[16] = {};
  CUcontext primary = nullptr;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  Pool* default_pool = nullptr;
  Pool* pool = nullptr;
};

struct Driver {
  std::atomic<bool> initialised{false};
  std::mutex mutex;  // over all below, unless a line says more. Never held while waiting for work.
  Gate gate;
  BrokerClient broker;
  Device devices[kMaxDevices];
  int device_count = 0;
  MemoryTable memory;
  // What exists, by its handle.
  std::map<Context*, std::unique_ptr<Context>> contexts;
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  std::map<Event*, std::shared_ptr<Event>> events;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<Pool*, std::unique_ptr<Pool>> pools;
  std::map<Graph*, std::unique_ptr<Graph>> graphs;
  uint64_t next_id = 1;
};

Driver& driver();

// What cuDriverGetVersion says: SOFTGPU_CUDA_VERSION, or our own.
int DriverVersion();

// Whether the call that this thread is in came by a _ptsz or _ptds symbol.
bool PerThreadDefault();

class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace softgpu
