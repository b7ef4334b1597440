// The protocol between a process and the broker over a stream socket: a Request, possibly with one
// file, and its Reply, possibly with files. Both ends must have the same kBrokerVersion.
//
//   op        key, token    file in   file out              meaning
//   kHello    key: folders  -         a folder per device   the first request; the reply has Config
//   kKeep     -             the file  -                     keep a file; the reply has key, token
//   kFetch    from kKeep    -         the file              also from another process
//   kDrop     from kKeep    -         -                     stop keeping one file
//   kDropAll  -             -         -                     drop all files of this connection
//
// When a connection closes, the broker drops its files.
#pragma once

#include <cstdint>

namespace softgpu {

inline constexpr uint32_t kBrokerMagic = 0x53474252;  // "SGBR"
inline constexpr uint32_t kBrokerVersion = 2;
inline constexpr int kMaxDevices = 16;

// Each device has two folders, so that the paths of device files show which library a process uses:
// /softgpu/N and /softgpu-hip/N.
inline constexpr uint64_t kCudaFolders = 0;
inline constexpr uint64_t kHipFolders = 1;

enum class BrokerOp : uint32_t { kHello = 1, kKeep, kFetch, kDrop, kDropAll };

struct BrokerConfig {
  uint32_t device_count = 0;
  uint32_t reserved = 0;
  uint64_t memory_bytes = 0;   // of each device
  uint64_t context_bytes = 0;  // cost of a context with the default stack limit
  unsigned char uuids[kMaxDevices][16] = {};
};

struct BrokerRequest {
  uint32_t magic = kBrokerMagic;
  uint32_t version = kBrokerVersion;
  BrokerOp op = BrokerOp::kHello;
  uint32_t reserved = 0;
  uint64_t key = 0;
  uint64_t token = 0;
};

struct BrokerReply {
  int32_t error = 0;  // an errno
  uint32_t reserved = 0;
  uint64_t key = 0;
  uint64_t token = 0;
  BrokerConfig config;
};

}  // namespace softgpu
