#include "api/connections.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

namespace stasis::api {
namespace {

// Returns the inode of the socket, or 0 if `fd` is not a socket.
ino_t SocketInode(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

template <class Map, class Predicate>
size_t CountIf(const Map& map, const Predicate& matches) {
  return static_cast<size_t>(std::count_if(
      map.begin(), map.end(), [&](const auto& entry) { return matches(entry.second); }));
}

}  // namespace

bool LeavesFreeDescriptors(int fd) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(fd) < limit.rlim_cur - limit.rlim_cur / 4;
}

void Connections::Add(int fd, std::string owner) {
  open_[fd] = {SocketInode(fd), std::move(owner), Clock::now()};
}

void Connections::ForgetClosed() {
  std::erase_if(open_,
                [](const auto& entry) { return SocketInode(entry.first) != entry.second.socket; });
}

size_t Connections::CountOf(const std::string& owner) const {
  return CountIf(open_, [&](const Connection& c) { return c.owner == owner; });
}

size_t Connections::CountYounger(std::chrono::milliseconds age) const {
  const auto since = Clock::now() - age;
  return CountIf(open_, [&](const Connection& c) { return c.accepted > since; });
}

size_t Connections::CountYoungerOf(const std::string& owner, std::chrono::milliseconds age) const {
  const auto since = Clock::now() - age;
  return CountIf(open_,
                 [&](const Connection& c) { return c.owner == owner && c.accepted > since; });
}

}  // namespace stasis::api
