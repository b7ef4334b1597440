#include "criu/options.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>

#include "base/rights.h"
#include "criu/rpc.pb.h"

namespace stasis::criu {
namespace {

Result<bool> ParseBool(std::string_view text) {
  for (std::string_view yes : {"", "1", "yes", "true", "on"}) {
    if (text == yes) return true;
  }
  for (std::string_view no : {"0", "no", "false", "off"}) {
    if (text == no) return false;
  }
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "'" + std::string(text) + "' is neither yes nor no");
}

template <class T>
Result<T> ParseNumber(std::string_view text) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "'" + std::string(text) + "' is not a number");
  }
  return value;
}

bool ProgramExists(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    folder += "/" + name;
    if (::access(folder.c_str(), X_OK) == 0) return true;
  }
  return false;
}

using Setter = Status (*)(Options&, std::string_view);

template <bool Options::*kMember>
Status SetBool(Options& options, std::string_view text) {
  STASIS_ASSIGN(options.*kMember, ParseBool(text));
  return {};
}
template <auto kMember>
Status SetNumber(Options& options, std::string_view text) {
  using T = std::remove_reference_t<decltype(options.*kMember)>;
  STASIS_ASSIGN(options.*kMember, ParseNumber<T>(text));
  return {};
}
Status AddExternal(Options& options, std::string_view text) {
  if (text.empty()) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "the option needs a value, for example unix[4711]");
  }
  options.external.emplace_back(text);
  return {};
}
struct LockName {
  std::string_view name;
  NetworkLock lock;
  rpc::NetworkLock wire;
};
constexpr LockName kLocks[] = {{"iptables", NetworkLock::kIptables, rpc::IPTABLES},
                               {"nftables", NetworkLock::kNftables, rpc::NFTABLES},
                               {"skip", NetworkLock::kSkip, rpc::SKIP}};
Status SetNetworkLock(Options& options, std::string_view text) {
  for (const LockName& row : kLocks) {
    if (row.name != text) continue;
    options.network_lock = row.lock;
    return {};
  }
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "'" + std::string(text) + "' is not one of iptables, nftables, skip");
}
rpc::NetworkLock WireLock(NetworkLock lock) {
  for (const LockName& row : kLocks) {
    if (row.lock == lock) return row.wire;
  }
  // The older iptables locks a file that only root can open; CRIU itself speaks to nftables.
  return ::geteuid() == 0 && ProgramExists("iptables") ? rpc::IPTABLES : rpc::NFTABLES;
}

Status SetTcp(Options& options, std::string_view text) {
  STASIS_ASSIGN(options.tcp, ParseTcp(std::string(text)));
  return {};
}

// The options that a user may set, with their names on CRIU's command line if they exist there.
// Other options would break assumptions of Stasis (the places of images and logs, and the time at
// which tasks are killed) or affect the machine.
struct Row {
  std::string_view name;
  Setter set;
};
constexpr Row kTable[] = {
    {"evasive-devices", SetBool<&Options::evasive_devices>},
    {"ext-unix-sk", SetBool<&Options::external_unix_sockets>},
    {"external", AddExternal},
    {"file-locks", SetBool<&Options::file_locks>},
    {"freeze-timeout", SetNumber<&Options::freeze_timeout_s>},
    {"ghost-limit", SetNumber<&Options::ghost_limit_bytes>},
    {"link-remap", SetBool<&Options::link_remap>},
    {"log-level", SetNumber<&Options::log_level>},
    {"network-lock", SetNetworkLock},
    {"orphan-pts-master", SetBool<&Options::orphan_pts_master>},
    {"shell-job", SetBool<&Options::shell_job>},
    {"skip-in-flight", SetBool<&Options::tcp_skip_in_flight>},
    {"tcp", SetTcp},
};

}  // namespace

Result<Tcp> ParseTcp(const std::string& text) {
  if (text == "refuse") return Tcp::kRefuse;
  if (text == "close") return Tcp::kClose;
  if (text == "keep") return Tcp::kKeep;
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "'" + text + "' is not one of refuse, close, keep");
}

Status Options::Set(const std::string& key_value) {
  std::string_view text = key_value;
  std::string_view key = text.substr(0, text.find('='));
  std::string_view value = key.size() < text.size() ? text.substr(key.size() + 1) : "";
  std::string names;
  for (const Row& row : kTable) {
    if (row.name == key) return Annotate(row.set(*this, value), "--criu-opt " + key_value);
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "'" + std::string(key) + "' is not a CRIU option that can be set",
              "one of: " + names);
}

Status CheckForUser(const Options& options) {
  if (::geteuid() == 0) return {};
  if (options.tcp == Tcp::kKeep && !HasRight(Right::kNetwork)) {
    return Fail(Code::kPermissionDenied,
                "user " + std::to_string(::geteuid()) +
                    " may not keep TCP connections: CRIU needs CAP_NET_ADMIN for that",
                "omit the option, run the command as root, or let root grant this capability to it "
                "(docs/security.md); with it, add --no-daemon, because the daemon grants it to no "
                "user");
  }
  if (!options.link_remap) return {};
  return Fail(Code::kPermissionDenied,
              "only root can save files that were deleted but have another name: CRIU needs "
              "CAP_DAC_READ_SEARCH for that",
              "omit the option, or run the command as root");
}

void Apply(const Options& options, rpc::Opts* opts) {
  opts->set_tcp_established(options.tcp == Tcp::kKeep);
  opts->set_tcp_close(options.tcp == Tcp::kClose);
  opts->set_file_locks(options.file_locks);
  opts->set_link_remap(options.link_remap);
  for (const auto& external : options.external) opts->add_external(external);
  opts->set_shell_job(options.shell_job);
  opts->set_orphan_pts_master(options.orphan_pts_master);
  opts->set_ext_unix_sk(options.external_unix_sockets);
  opts->set_evasive_devices(options.evasive_devices);
  opts->set_network_lock(WireLock(options.network_lock));
  opts->set_tcp_skip_in_flight(options.tcp_skip_in_flight);
  // The protobuf field has 32 bits.
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  opts->set_ghost_limit(static_cast<uint32_t>(std::min(options.ghost_limit_bytes, kMost)));
  opts->set_timeout(options.freeze_timeout_s);
  // CRIU ignores some errors of plugins, which are then in the log only (amd_plugin.h).
  constexpr int kErrors = 1;
  opts->set_log_level(options.plugins.empty() ? options.log_level
                                              : std::max(options.log_level, kErrors));
  // A job runs in the control group of the process that starts or restores it. The control group in
  // the image may not exist on this machine.
  opts->set_manage_cgroups_mode(rpc::IGNORE);
  opts->set_unprivileged(::geteuid() != 0);
}

}  // namespace stasis::criu
