#include "store/page_sources.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "base/descriptor_table.h"
#include "store/beneath.h"
#include "store/limits.h"

namespace stasis::store {

namespace {

bool IsPagesFile(const std::string& name) {
  constexpr std::string_view kBegin = "pages-", kEnd = ".img";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  const std::string number =
      name.substr(kBegin.size(), name.size() - std::min(name.size(), kBegin.size() + kEnd.size()));
  return !number.empty() && number.find_first_not_of("0123456789") == number.npos;
}

}  // namespace

Result<std::vector<PageSource>> OpenPageSources(const ImageWriter& writer,
                                                std::vector<std::string>& notes) {
  (void)RaiseDescriptorLimit();  // a program has a file for each process
  std::vector<PageSource> sources;
  STASIS_ASSIGN(auto entries, ListFolder(writer.cpu_dir_fd()));
  uint64_t pages = 0;
  for (const Entry& entry : entries) {
    if (!entry.is_regular || !IsPagesFile(entry.name)) continue;
    PageSource source;
    source.name = entry.name;
    STASIS_ASSIGN(source.fd, OpenBeneath(writer.cpu_dir_fd(), entry.name, O_RDWR));
    struct stat st;
    if (::fstat(source.fd.get(), &st) != 0) return FailErrno(errno, "stat " + entry.name);
    const auto size = static_cast<uint64_t>(st.st_size);
    if (size == 0 || size % kPageBytes != 0) continue;
    source.first = static_cast<uint32_t>(pages);
    pages += size / kPageBytes;
    if (pages > kMaxPackUnits) {
      notes.push_back(fmt::format(
          "the program has more than {} GiB of CPU memory, so all of it is written, and none is "
          "shared with other images",
          kMaxPackUnits * kPageBytes >> 30));
      return std::vector<PageSource>{};
    }
    source.pages = static_cast<uint32_t>(size / kPageBytes);
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace stasis::store
