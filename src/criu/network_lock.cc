#include "criu/network_lock.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/fd.h"
#include "base/rights.h"

namespace stasis::criu {
namespace {

constexpr char kLibrary[] = "libnftables.so.1";

// The functions of libnftables (nftables/libnftables.h), whose headers are not needed to build.
struct Library {
  struct Context;
  Context* (*make)(uint32_t flags) = nullptr;
  void (*free)(Context*) = nullptr;
  int (*buffer_output)(Context*) = nullptr;
  int (*buffer_error)(Context*) = nullptr;
  const char* (*error)(Context*) = nullptr;
  int (*run)(Context*, const char* commands) = nullptr;
};

template <class Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

Result<Library> Load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  Library found;
  if (library != nullptr && Find(library, "nft_ctx_new", found.make) &&
      Find(library, "nft_ctx_free", found.free) &&
      Find(library, "nft_ctx_buffer_output", found.buffer_output) &&
      Find(library, "nft_ctx_buffer_error", found.buffer_error) &&
      Find(library, "nft_ctx_get_error_buffer", found.error) &&
      Find(library, "nft_run_cmd_from_buffer", found.run)) {
    return found;
  }
  return Fail(Code::kUnimplemented, fmt::format("{} is missing or of an unknown version", kLibrary),
              "Install it (Debian: libnftables1).");
}

// The library ends the process if the kernel refuses its socket, and prints a text without the
// right.
Status CheckAccess() {
  if (!HasRight(Right::kNetwork)) {
    return Fail(Code::kPermissionDenied, "nftables needs CAP_NET_ADMIN",
                "Run the command as root.");
  }
  UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  if (!socket) return FailErrno(errno, "open a socket for nftables");
  return {};
}

// Runs all commands or none. Returns false if the kernel answered `expected`, an errno.
Result<bool> Run(const std::string& commands, int expected) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  STASIS_TRY(CheckAccess());
  STASIS_ASSIGN(const Library nft, Load());
  const std::unique_ptr<Library::Context, void (*)(Library::Context*)> context(nft.make(0),
                                                                               nft.free);
  if (!context || nft.buffer_output(context.get()) != 0 || nft.buffer_error(context.get()) != 0) {
    return Fail(Code::kInternal, "libnftables cannot be used");
  }
  if (nft.run(context.get(), commands.c_str()) == 0) return true;
  const char* answer = nft.error(context.get());
  std::string text = answer != nullptr ? answer : "";
  if (text.find(std::strerror(expected)) != std::string::npos) return false;
  return Fail(text.find(std::strerror(EPERM)) != std::string::npos ? Code::kPermissionDenied
                                                                   : Code::kUnavailable,
              "nftables: " + text.substr(0, text.find('\n')));
}

// Returns false if the table exists.
Result<bool> Make(const KeptConnections& kept) { return Run(LockCommands(kept), EEXIST); }

// Also succeeds if there is no such table.
Status Remove(const std::string& table) {
  auto removed = Run(fmt::format("delete table inet {}\n", table), ENOENT);
  return removed ? Status() : Fail(std::move(removed).error());
}

std::string CountedFirst(const std::vector<TcpConnection>& all) {
  return fmt::format(fmt::runtime(all.size() == 1 ? "the TCP connection {1}"
                                                  : "{0} TCP connections, such as {1},"),
                     all.size(), ToString(all.front()));
}

std::string HowToRemove(const KeptConnections& kept) {
  if (kept.lock == NetworkLock::kNftables) {
    return fmt::format("`nft delete table inet {}` as root removes it", kept.table);
  }
  return "`iptables -S | grep -i 0xc114` and `ip6tables -S` list it, and `iptables -D` as root "
         "removes each rule";
}

// Returns both directions of the connections of one family, for a set.
std::string Elements(const std::vector<TcpConnection>& all, bool v4) {
  std::string text;
  auto add = [&](const TcpAddress& from, uint16_t from_port, const TcpAddress& to,
                 uint16_t to_port) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} . {} . {} . {}", ToString(from), from_port, ToString(to), to_port);
  };
  for (const TcpConnection& end : all) {
    if (IsIpv4(end.remote) != v4) continue;
    add(end.remote, end.remote_port, end.local, end.local_port);
    add(end.local, end.local_port, end.remote, end.remote_port);
  }
  return text;
}

// Says that the lock stays, for the reason `why`.
std::string Stays(const KeptConnections& kept, const std::string& why) {
  return fmt::format(
      "CRIU's block of the dumped TCP connections stays on this machine until the program is "
      "restored here, because {}. It drops packets of all connections with the same addresses and "
      "ports. If there will be no restore here, {}.",
      why, HowToRemove(kept));
}

}  // namespace

// As nftables_init_connection_lock and nftables_lock_connection of CRIU's criu/netfilter.c.
std::string LockCommands(const KeptConnections& kept) {
  std::string text = fmt::format("create table inet {}\n", kept.table);
  for (const char* chain : {"output", "input"}) {
    text += fmt::format(
        "add chain inet {0} {1} {{ type filter hook {1} priority 0; }}\n"
        "add rule inet {0} {1} meta mark 0xc114 accept\n",
        kept.table, chain);
  }
  for (const auto& [set, type, ip] :
       {std::tuple{"conns4", "ipv4_addr", "ip"}, std::tuple{"conns6", "ipv6_addr", "ip6"}}) {
    text += fmt::format("add set inet {} {} {{ type {} . inet_service . {} . inet_service; }}\n",
                        kept.table, set, type, type);
    for (const char* chain : {"output", "input"}) {
      text +=
          fmt::format("add rule inet {} {} {} saddr . tcp sport . {} daddr . tcp dport @{} drop\n",
                      kept.table, chain, ip, ip, set);
    }
  }
  for (const bool v4 : {true, false}) {
    const std::string elements = Elements(kept.all, v4);
    if (elements.empty()) continue;
    text +=
        fmt::format("add element inet {} conns{} {{ {} }}\n", kept.table, v4 ? '4' : '6', elements);
  }
  return text;
}

std::string ReleaseAfterDump(const Result<KeptConnections>& kept) {
  if (!kept) {
    return "CRIU's block of the dumped TCP connections may stay on this machine (`nft list "
           "tables` as root): " +
           kept.error().ToString() + ".";
  }
  if (kept->all.empty() && kept->lock != NetworkLock::kNftables) return {};
  if (kept->lock == NetworkLock::kSkip) return {};
  if (const auto outside = FindOutside(*kept); !outside.empty()) {
    return Stays(*kept, CountedFirst(outside) + (outside.size() == 1 ? " leads" : " lead") +
                            " to another program");
  }
  if (kept->lock == NetworkLock::kIptables) return Stays(*kept, "it was made with iptables");
  Status removed = Remove(kept->table);
  return removed ? "" : Stays(*kept, "it could not be removed: " + removed.error().ToString());
}

Result<RestoreLock> RestoreLock::Make(const std::string& images_dir) {
  RestoreLock lock;
  STASIS_ASSIGN(const KeptConnections kept, ReadKeptConnections(images_dir));
  if (kept.lock != NetworkLock::kNftables || kept.all.empty()) return lock;
  auto made = criu::Make(kept);
  if (made) {
    if (*made || FindOutside(kept).empty()) lock.table_ = kept.table;
    return lock;
  }
  STASIS_ASSIGN(const bool needed, HasUnsentData(images_dir, kept));
  Error why = std::move(made).error();
  if (needed) {
    return Fail(std::move(why.WithContext(
        "the packets of the program's TCP connections cannot be blocked, without which data that "
        "was not sent before the dump would be lost")));
  }
  lock.note_ =
      "The packets of the program's TCP connections were not blocked during the restore: " +
      why.ToString() + ".";
  return lock;
}

Status RestoreLock::End() {
  if (table_.empty()) return {};
  return Annotate(Remove(std::exchange(table_, {})),
                  "remove the block of the program's TCP connections");
}

}  // namespace stasis::criu
