// The state of the driver, one per process. Created by cuInit and never destroyed, because stream
// threads may outlive main.
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

// A device as this process sees it. A restore may map it to another physical device.
struct Device {
  int physical = 0;
  unsigned char uuid[16] = {};
  CUcontext primary = nullptr;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;
  Pool* default_pool = nullptr;
  Pool* pool = nullptr;
};

// The library through which the program uses the driver: libcuda or libamdhip64.
enum class Face { kCuda, kHip };

struct Driver {
  std::atomic<bool> initialised{false};
  std::atomic<Face> face{Face::kCuda};  // set before the initialisation
  std::mutex mutex;  // guards all of the following unless noted; never held while waiting for work
  Gate gate;
  BrokerClient broker;
  Device devices[kMaxDevices];
  int device_count = 0;
  MemoryTable memory;
  // All objects of the program, by handle.
  std::map<Context*, std::unique_ptr<Context>> contexts;
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  std::map<Event*, std::shared_ptr<Event>> events;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<Pool*, std::unique_ptr<Pool>> pools;
  std::map<Graph*, std::unique_ptr<Graph>> graphs;
  uint64_t next_id = 1;
};

Driver& driver();

// Returns the result of cuDriverGetVersion: SOFTGPU_CUDA_VERSION or the built-in value.
int DriverVersion();

// Returns true if the current call of this thread came through a _ptsz or _ptds symbol.
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
