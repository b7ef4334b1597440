#include "agent/cuda/driver_memory.h"

#include <string.h>

#include "agent/control.h"
#include "agent/cuda/allocate.h"
#include "agent/cuda/contexts.h"
#include "agent/vector.h"

namespace stasis::agent {

Mutex g_driver_memory_mutex;

namespace {

Vector<DriverPiece> g_pieces;  // sorted by key
std::atomic<uint64_t> g_arrays{0};
std::atomic<bool> g_uncounted{false};  // an allocation could not be counted for lack of memory

size_t IndexFrom(uint64_t key) {
  return g_pieces.LowerBound([&](const DriverPiece& piece) { return piece.key < key; });
}

uint64_t AddressOf(const void* host) { return reinterpret_cast<uint64_t>(host); }

CUresult Counted(CUresult r, DriverKind kind, uint64_t key, uint64_t bytes) {
  if (r == CUDA_SUCCESS) CountDriverMemory(kind, key, bytes);
  return r;
}

}  // namespace

void CountDriverMemory(DriverKind kind, uint64_t key, uint64_t bytes, CUdevice device) {
  Lock lock(g_driver_memory_mutex);
  size_t at = IndexFrom(key);
  DriverPiece piece{key, bytes, kind, device};
  if (at < g_pieces.size() && g_pieces[at].key == key) {
    g_pieces[at] = piece;  // freed by a call without a hook, and allocated again
  } else if (!g_pieces.Insert(at, piece)) {
    g_uncounted.store(true);
  }
}

DriverPiece UncountDriverMemory(uint64_t key) {
  Lock lock(g_driver_memory_mutex);
  size_t at = IndexFrom(key);
  if (at == g_pieces.size() || g_pieces[at].key != key) return {key, 0, DriverKind::kNone, -1};
  DriverPiece piece = g_pieces[at];
  g_pieces.Erase(at);
  return piece;
}

void CountArray() { g_arrays.fetch_add(1); }

agent_protocol::DriverAccount DriverAccountNow() {
  Lock lock(g_driver_memory_mutex);
  agent_protocol::DriverAccount account{};
  uint64_t* const sums[] = {nullptr,
                            &account.tiny_bytes,
                            &account.plain_bytes,
                            &account.pool_bytes,
                            &account.managed_bytes,
                            &account.host_bytes,
                            &account.program_vmm_bytes};
  for (const DriverPiece& piece : g_pieces) *sums[int(piece.kind)] += piece.bytes;
  account.arrays = g_arrays.load();
  return account;
}

bool MayBeHostMemory(uint64_t begin, uint64_t end) {
  if (!t_tables_are_whole || g_uncounted.load()) return true;
  bool may_be = false;
  for (const DriverPiece& piece : g_pieces) {
    may_be |= piece.kind == DriverKind::kProgramVmm;  // its address is unknown
    may_be |= piece.kind == DriverKind::kHost && piece.key < end && begin < piece.key + piece.bytes;
  }
  return may_be;
}

void ResetDriverMemory() {
  g_driver_memory_mutex.ResetAfterFork();
  g_pieces.AbandonAfterFork();
  g_arrays.store(0);
  g_uncounted.store(false);
}

namespace hook {

CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t bytes, unsigned flags) {
  CUresult r = AllocateOrWait({}, [&] { return real::cuMemAllocManaged(ptr, bytes, flags); });
  return r == CUDA_SUCCESS ? Counted(r, DriverKind::kManaged, *ptr, bytes) : r;
}
CUresult cuMemAllocHost_v2(void** pp, size_t bytes) {
  CUresult r = real::cuMemAllocHost_v2(pp, bytes);
  return r == CUDA_SUCCESS ? Counted(r, DriverKind::kHost, AddressOf(*pp), bytes) : r;
}
CUresult cuMemHostAlloc(void** pp, size_t bytes, unsigned flags) {
  CUresult r = real::cuMemHostAlloc(pp, bytes, flags);
  return r == CUDA_SUCCESS ? Counted(r, DriverKind::kHost, AddressOf(*pp), bytes) : r;
}
CUresult cuMemFreeHost(void* p) {
  return FreeCounted(AddressOf(p), [&] { return real::cuMemFreeHost(p); });
}

CUresult cuArrayCreate_v2(STASIS_P2) {
  CountArray();
  return real::cuArrayCreate_v2(STASIS_A2);
}
CUresult cuArray3DCreate_v2(STASIS_P2) {
  CountArray();
  return real::cuArray3DCreate_v2(STASIS_A2);
}
CUresult cuMipmappedArrayCreate(STASIS_P3) {
  CountArray();
  return real::cuMipmappedArrayCreate(STASIS_A3);
}

}  // namespace hook
}  // namespace stasis::agent
