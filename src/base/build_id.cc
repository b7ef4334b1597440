#include "base/build_id.h"

#include <elf.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/hex.h"

namespace stasis {
namespace {

constexpr size_t kMaxSegments = 256;
constexpr size_t kMaxNoteBytes = 64u << 10;
constexpr size_t kMaxIdBytes = 64;

size_t Aligned(size_t bytes) { return (bytes + 3) & ~size_t{3}; }

// Returns the id from the notes of one segment, or an empty string.
std::string IdInNotes(std::string_view notes) {
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data(), sizeof header);
    notes.remove_prefix(sizeof header);
    size_t name_bytes = Aligned(header.n_namesz), id_bytes = header.n_descsz;
    if (name_bytes > notes.size() || id_bytes > notes.size() - name_bytes) return {};
    bool is_gnu = notes.substr(0, header.n_namesz) == std::string_view("GNU", 4);
    if (header.n_type == NT_GNU_BUILD_ID && is_gnu && id_bytes <= kMaxIdBytes) {
      return HexOfBytes(notes.substr(name_bytes, id_bytes));
    }
    notes.remove_prefix(std::min(name_bytes + Aligned(id_bytes), notes.size()));
  }
  return {};
}

}  // namespace

Result<std::string> ReadBuildId(const std::string& path) {
  STASIS_ASSIGN(UniqueFd fd, Open(path, O_RDONLY | O_NONBLOCK));
  Elf64_Ehdr elf;
  if (!PreadAll(fd.get(), &elf, sizeof elf, 0)) return std::string();
  if (std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
      elf.e_ident[EI_DATA] != ELFDATA2LSB || elf.e_phentsize != sizeof(Elf64_Phdr)) {
    return std::string();
  }
  std::vector<Elf64_Phdr> segments(std::min<size_t>(elf.e_phnum, kMaxSegments));
  if (!PreadAll(fd.get(), segments.data(), segments.size() * sizeof(Elf64_Phdr), elf.e_phoff)) {
    return std::string();
  }
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes) continue;
    std::string notes(segment.p_filesz, '\0');
    if (!PreadAll(fd.get(), notes.data(), notes.size(), segment.p_offset)) continue;
    if (std::string id = IdInNotes(notes); !id.empty()) return id;
  }
  return std::string();
}

}  // namespace stasis
