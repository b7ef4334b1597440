#include "criu/terminals.h"

#include <cstdint>
#include <cstring>

#include "base/file.h"
#include "criu/tty_info.pb.h"

namespace stasis::criu {
namespace {

// tty-info.img, all numbers little-endian:
//   0  u32  0x54564319   common to all of CRIU's images
//   4  u32  0x59453036   this kind
//   8  u32  size, then so many bytes of protobuf; again and again to the end of the file
constexpr uint32_t kCommonMagic = 0x54564319, kKindMagic = 0x59453036;
constexpr size_t kHeaderBytes = 8;
constexpr uint32_t kExternal = 5;  // TtyInfo.type

uint32_t Number(const std::string& bytes, size_t at) {
  uint32_t number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void Append(std::string* bytes, uint32_t number) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

Status DetachTerminals(const std::string& images_dir) {
  std::string path = images_dir + "/tty-info.img";
  if (!PathExists(path)) return {};
  STASIS_ASSIGN(std::string old, ReadFile(path));
  auto unreadable = [&] {
    return Fail(Code::kInternal, Domain::kCriu, 0, path + " is not as CRIU 4 writes it");
  };
  if (old.size() < kHeaderBytes || Number(old, 0) != kCommonMagic || Number(old, 4) != kKindMagic) {
    return unreadable();
  }
  std::string text = old.substr(0, kHeaderBytes);
  for (size_t at = kHeaderBytes; at < old.size();) {
    if (old.size() - at < sizeof(uint32_t)) return unreadable();
    size_t size = Number(old, at);
    at += sizeof(uint32_t);
    image::TtyInfo info;
    if (old.size() - at < size || !info.ParseFromArray(old.data() + at, static_cast<int>(size))) {
      return unreadable();
    }
    at += size;
    if (info.type() == kExternal) {
      info.set_sid(0);
      info.set_pgrp(0);
    }
    std::string entry = info.SerializeAsString();
    Append(&text, static_cast<uint32_t>(entry.size()));
    text += entry;
  }
  if (text == old) return {};
  return WriteFileDurably(path, text);
}

}  // namespace stasis::criu
