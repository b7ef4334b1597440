// What a process says to the broker, over one stream socket: a Request, perhaps with one file, and
// its Reply, perhaps with files. Both ends come from one build; kBrokerVersion says so.
//
//   op       key, token     file in   file out              meaning
//   kHello   -              -         one folder a device   the first one; the reply holds the
//   Config kKeep    -              the file  -                     keep a file until dropped;
//   reply: key, token kFetch   of a keep      -         the file              also for another
//   process kDrop    of a keep      -         - kDropAll -              -         - everything this
//   connection keeps
//
// What a connection keeps is dropped with it.
#pragma once

#include <cstdint>

namespace softgpu {

inline constexpr uint32_t kBrokerMagic = 0x53474252;  // "SGBR"
inline constexpr uint32_t kBrokerVersion = 1;
inline constexpr int kMaxDevices = 16;

enum class BrokerOp : uint32_t { kHello = 1, kKeep, kFetch, kDrop, kDropAll };

struct BrokerConfig {
  uint32_t device_count = 0;
  uint32_t reserved = 0;
  uint64_t memory_bytes = 0;   // of each device
  uint64_t context_bytes = 0;  // what a context costs on a device, with the default stack limit
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
