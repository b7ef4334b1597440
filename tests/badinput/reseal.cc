// reseal MANIFEST OFFSET NUMBER: writes a 32-bit number to a manifest and corrects its checksum,
// like a later version of Stasis or a careful forger.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "base/checksum.h"
#include "store/envelope.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::ifstream in(argv[1], std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  size_t offset = std::strtoul(argv[2], nullptr, 0);
  unsigned long number = std::strtoul(argv[3], nullptr, 0);
  constexpr size_t kSum = stasis::Id128::kBytes;
  if (file.size() < offset + 4 + kSum) return 1;
  for (int i = 0; i < 4; ++i) file[offset + i] = static_cast<char>(number >> (8 * i));
  file.resize(file.size() - kSum);
  file += stasis::Checksum(file).View();
  std::ofstream out(argv[1], std::ios::binary | std::ios::trunc);
  out << file;
  return out.flush() ? 0 : 1;
}
