#include "daemon/connections.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

namespace stasis::daemon {
namespace {

// Which socket it is; 0: none.
ino_t SocketBehind(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

template <class Map, class Which>
size_t CountIf(const Map& map, const Which& which) {
  return static_cast<size_t>(std::count_if(map.begin(), map.end(),
                                           [&](const auto& entry) { return which(entry.second); }));
}

}  // namespace

bool LeavesRoom(int fd) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(fd) < limit.rlim_cur - limit.rlim_cur / 4;
}

void Connections::Add(int fd, std::string whose) {
  open_[fd] = {SocketBehind(fd), std::move(whose), Clock::now()};
}

void Connections::ForgetClosed() {
  std::erase_if(open_,
                [](const auto& entry) { return SocketBehind(entry.first) != entry.second.socket; });
}

size_t Connections::CountOf(const std::string& whose) const {
  return CountIf(open_, [&](const Connection& c) { return c.whose == whose; });
}

size_t Connections::CountYounger(std::chrono::milliseconds age) const {
  const auto since = Clock::now() - age;
  return CountIf(open_, [&](const Connection& c) { return c.came > since; });
}

size_t Connections::CountYoungerOf(const std::string& whose, std::chrono::milliseconds age) const {
  const auto since = Clock::now() - age;
  return CountIf(open_, [&](const Connection& c) { return c.whose == whose && c.came > since; });
}

}  // namespace stasis::daemon
