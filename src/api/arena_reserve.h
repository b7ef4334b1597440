// Makes host memory ready for the first suspends of jobs while they run (arena.reserve). After each
// survey of a user's jobs, a worker with the user's rights reserves as much as they have on the GPU
// (ready_arenas.cc). One worker runs for each set of folders.
//
// Safe to use from any thread. The object must outlive its workers.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

class ArenaReserve {
 public:
  // Starts a worker for the request. Calls the function once, from any thread.
  using StartWorker = std::function<void(
      const v1::WorkerRequest& work, std::function<void(Result<v1::ReadyArenasResponse>)> done)>;

  // `most_bytes` is for all users together; 0: no limit.
  ArenaReserve(uint64_t most_bytes, StartWorker start);

  // The processes of one user's folders have this memory on the GPU. `work` is a request of the
  // user without a method. `room_bytes` is the host memory that is not allocated. Does nothing if
  // the needs have not changed since the last time, unless less memory is free than is ready: the
  // worker then gives some back.
  void SetNeeds(const std::string& entry, const v1::WorkerRequest& work,
                v1::ReadyArenasRequest needs, uint64_t room_bytes);
  // Returns how much memory is ready for the processes of these folders, as their worker said.
  uint64_t ReadyBytes(const std::string& entry) const;

 private:
  struct Entry {
    v1::WorkerRequest work;
    v1::ReadyArenasRequest needs;  // the last ones
    bool started = false;          // for `needs`
    bool running = false;
    uint64_t ready_bytes = 0;
  };
  std::function<void()> Prepare(const std::string& name, Entry& entry);
  // Of all entries except one.
  uint64_t OthersReadyBytes(const std::string& name) const;
  void Ended(const std::string& name, const Result<v1::ReadyArenasResponse>& response);

  const uint64_t most_bytes_;
  const StartWorker start_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

// Starts stasis-worker.
void StartReadyArenas(const v1::WorkerRequest& work,
                      const std::function<void(Result<v1::ReadyArenasResponse>)>& done);

}  // namespace stasis::api
