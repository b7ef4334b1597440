// Data shared by the commands of target.cc: memory, streams and threads. Each command answers with
// a line.
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
extern char line[256];  // the line being processed

CUmemAllocationProp Properties(CUmemAllocationHandleType type);

// Hammering threads run until this is set.
extern std::atomic<bool> calm;
extern std::atomic<uint64_t> rounds;
extern std::atomic<uint64_t> wrong;

// target_pool.cc: stream-ordered memory and pools.
std::string DoPool(const std::string& verb, uint64_t a, uint64_t b);
void HammerPool(int number);

// target_sharing.cc: memory, events and handles shared with another process.
std::string DoIpc(const std::string& verb, uint64_t a, uint64_t b);
std::string DoHandle(const std::string& verb, uint64_t a, uint64_t b);

}  // namespace target
