#include "criu/image_entries.h"

#include <cstring>

#include "base/file.h"

namespace stasis::criu {
namespace {

constexpr uint32_t kCommonMagic = 0x54564319;
constexpr size_t kHeaderBytes = 8;

uint32_t Number(const std::string& bytes, size_t at) {
  uint32_t number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void Append(std::string* bytes, uint32_t number) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

Result<std::string> ChangedEntries(const std::string& bytes, uint32_t kind, const std::string& what,
                                   const std::function<Status(std::string&)>& change) {
  auto unreadable = [&] {
    return Fail(Code::kInternal, Domain::kCriu, 0, what + " is not as CRIU 4 writes it");
  };
  if (bytes.size() < kHeaderBytes || Number(bytes, 0) != kCommonMagic || Number(bytes, 4) != kind) {
    return unreadable();
  }
  std::string text = bytes.substr(0, kHeaderBytes);
  for (size_t at = kHeaderBytes; at < bytes.size();) {
    if (bytes.size() - at < sizeof(uint32_t)) return unreadable();
    const size_t size = Number(bytes, at);
    at += sizeof(uint32_t);
    if (bytes.size() - at < size) return unreadable();
    std::string entry = bytes.substr(at, size);
    at += size;
    STASIS_TRY(Annotate(change(entry), what));
    Append(&text, static_cast<uint32_t>(entry.size()));
    text += entry;
  }
  return text;
}

Status ChangeEntries(const std::string& path, uint32_t kind,
                     const std::function<Status(std::string&)>& change) {
  STASIS_ASSIGN(std::string old, ReadFile(path));
  STASIS_ASSIGN(std::string text, ChangedEntries(old, kind, path, change));
  if (text == old) return {};
  return WriteFileDurably(path, text);
}

}  // namespace stasis::criu
