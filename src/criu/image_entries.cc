#include "criu/image_entries.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/file.h"

namespace stasis::criu {
namespace {

constexpr uint32_t kCommonMagic = 0x54564319;
constexpr size_t kHeaderBytes = 8;

// Entries can be large: that of an epoll descriptor lists all descriptors that it watches.
constexpr uint64_t kMaxEntryBytes = 64u << 20;
constexpr uint64_t kReadBytes = 1 << 20;

uint32_t Number(std::string_view bytes, size_t at) {
  uint32_t number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void Append(std::string* bytes, uint32_t number) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Returns `count` bytes of the file at `at`, valid until the next call. They must be within the
// file.
using Bytes = std::function<Result<std::string_view>(uint64_t at, uint64_t count)>;

Status Walk(const Bytes& bytes, uint64_t size_bytes, uint32_t kind, const std::string& what,
            const std::function<Status(std::string_view)>& look) {
  auto unreadable = [&] {
    return Fail(Code::kInternal, Domain::kCriu, 0, what + " does not have the format of CRIU 4");
  };
  if (size_bytes < kHeaderBytes) return unreadable();
  STASIS_ASSIGN(const std::string_view header, bytes(0, kHeaderBytes));
  if (Number(header, 0) != kCommonMagic || Number(header, 4) != kind) return unreadable();
  for (uint64_t at = kHeaderBytes; at < size_bytes;) {
    if (size_bytes - at < sizeof(uint32_t)) return unreadable();
    STASIS_ASSIGN(const std::string_view number, bytes(at, sizeof(uint32_t)));
    const uint64_t size = Number(number, 0);
    at += sizeof(uint32_t);
    if (size_bytes - at < size || size > kMaxEntryBytes) return unreadable();
    STASIS_ASSIGN(const std::string_view entry, bytes(at, size));
    STASIS_TRY(Annotate(look(entry), what));
    at += size;
  }
  return {};
}

// Reads a file sequentially in large parts.
class Window {
 public:
  Window(int fd, uint64_t size_bytes) : fd_(fd), size_bytes_(size_bytes) {}

  Result<std::string_view> At(uint64_t at, uint64_t count) {
    if (at < begin_ || at + count > begin_ + bytes_.size()) {
      bytes_.resize(std::min(std::max(count, kReadBytes), size_bytes_ - at));
      begin_ = at;
      STASIS_TRY(PreadAll(fd_, bytes_.data(), bytes_.size(), at));
    }
    return std::string_view(bytes_).substr(at - begin_, count);
  }

 private:
  const int fd_;
  const uint64_t size_bytes_;
  uint64_t begin_ = 0;
  std::string bytes_;
};

}  // namespace

Result<std::string> ChangedEntries(const std::string& bytes, uint32_t kind, const std::string& what,
                                   const std::function<Status(std::string&)>& change) {
  auto all = [&](uint64_t at, uint64_t count) -> Result<std::string_view> {
    return std::string_view(bytes).substr(at, count);
  };
  std::string text = bytes.substr(0, kHeaderBytes);
  auto look = [&](std::string_view old) -> Status {
    std::string entry(old);
    STASIS_TRY(change(entry));
    Append(&text, static_cast<uint32_t>(entry.size()));
    text += entry;
    return {};
  };
  STASIS_TRY(Walk(all, bytes.size(), kind, what, look));
  return text;
}

std::string MakeEntries(uint32_t kind, const std::vector<std::string>& entries) {
  std::string bytes;
  Append(&bytes, kCommonMagic);
  Append(&bytes, kind);
  for (const std::string& entry : entries) {
    Append(&bytes, static_cast<uint32_t>(entry.size()));
    bytes += entry;
  }
  return bytes;
}

Status ReadEntries(int fd, uint64_t size_bytes, uint32_t kind, const std::string& what,
                   const std::function<Status(const std::string&)>& look) {
  Window window(fd, size_bytes);
  return Walk([&](uint64_t at, uint64_t count) { return window.At(at, count); }, size_bytes, kind,
              what, [&](std::string_view entry) { return look(std::string(entry)); });
}

Status ChangeEntries(const std::string& path, uint32_t kind,
                     const std::function<Status(std::string&)>& change) {
  STASIS_ASSIGN(std::string old, ReadFile(path));
  STASIS_ASSIGN(std::string text, ChangedEntries(old, kind, path, change));
  if (text == old) return {};
  return WriteFileDurably(path, text);
}

}  // namespace stasis::criu
