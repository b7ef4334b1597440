// What the verbs of the program of target.cc have in common: its memory, its streams, its threads.
// Each verb answers with a line.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "target_driver.h"

namespace target {

struct Piece {
  CUdeviceptr address;
  size_t bytes;
};
extern std::vector<Piece> pieces;
extern CUcontext primary;
extern CUstream stream;
CUstream Stream(uint64_t which);
extern char line[256];  // that is being answered

CUmemAllocationProp Properties(CUmemAllocationHandleType type);

// Threads that hammer go on until it is calm.
extern std::atomic<bool> calm;
extern std::atomic<uint64_t> rounds;
extern std::atomic<uint64_t> wrong;

// target_pool.cc: memory in the order of streams, and its pools.
std::string DoPool(const std::string& verb, uint64_t a, uint64_t b);
void HammerPool(int number);

// target_sharing.cc: memory, events and handles of the program's own that are another process's
// too.
std::string DoIpc(const std::string& verb, uint64_t a, uint64_t b);
std::string DoHandle(const std::string& verb, uint64_t a, uint64_t b);

}  // namespace target
