#include "slurm/task_options.h"

#include <charconv>
#include <limits>

namespace stasis::slurm {
namespace {

// More than Slurm starts on one node.
constexpr int64_t kMostTasks = 1 << 16;

tl::unexpected<Error> FailUsage(std::string message, std::string hint = {}) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, std::move(message), std::move(hint));
}

// Parses a number from `least` on at the beginning of `text`, and removes it.
bool TakeNumber(std::string_view& text, int64_t least, int64_t& number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < least || number > std::numeric_limits<int>::max()) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Parses "90", "90s", "30m" or "2h".
bool ParseSeconds(std::string_view text, int64_t& seconds) {
  if (!TakeNumber(text, 1, seconds)) return false;
  if (text == "h") seconds *= 3600;
  if (text == "m") seconds *= 60;
  return text.empty() || text == "s" || text == "m" || text == "h";
}

Status SetUserOption(const std::string& word, UserOptions& options) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
  if (name == "every" && ParseSeconds(value, options.every_s)) return {};
  if (name == "keep") {
    std::string_view text = value;
    if (int64_t number = 0; TakeNumber(text, 1, number) && text.empty()) {
      options.keep = static_cast<int>(number);
      return {};
    }
  }
  if (name == "to" && !value.empty()) {
    options.to = value;
    return {};
  }
  if (name == "tcp" && !options.tcp.empty()) {
    // The plugin and the launcher could read different ones.
    return FailUsage("--stasis: tcp is given twice", "choose tcp=keep or tcp=close");
  }
  if (name == "tcp" && (value == "keep" || value == "close")) {
    options.tcp = value;
    return {};
  }
  if (word == "multinode") {
    options.multinode = true;
    return {};
  }
  if (word == "together") {
    options.together = true;
    return {};
  }
  if (word == "nopidns") return {};  // for the plugin
  if (name == "reserve" && (equals == word.npos || value == "off")) {
    options.reserve = equals == word.npos;
    return {};
  }
  return FailUsage("--stasis=" + word + " is not an option",
                   "--stasis[=every=30m,keep=3,to=REPO,reserve,tcp=keep|close,multinode,together,"
                   "nopidns], in any selection");
}

// Parses "3/8/0".
bool ParsePlace(std::string_view text, TaskPlace& place) {
  int64_t local = 0, count = 0, node = 0;
  if (!TakeNumber(text, 0, local) || !text.starts_with('/')) return false;
  text.remove_prefix(1);
  if (!TakeNumber(text, 1, count) || !text.starts_with('/')) return false;
  text.remove_prefix(1);
  if (!TakeNumber(text, 0, node) || !text.empty()) return false;
  if (local >= count || count > kMostTasks) return false;
  place = {static_cast<int>(local), static_cast<int>(count), static_cast<int>(node)};
  return true;
}

}  // namespace

Status CheckNodes(const TaskOptions& options, char* const* environment) {
  // A batch script runs on one node, whatever its job has.
  if (options.script || options.user.multinode) return {};
  constexpr std::string_view kNodes = "SLURM_STEP_NUM_NODES=";
  for (; *environment != nullptr; ++environment) {
    std::string_view text = *environment;
    if (!text.starts_with(kNodes)) continue;
    text.remove_prefix(kNodes.size());
    int64_t nodes = 0;
    if (!TakeNumber(text, 2, nodes) || !text.empty()) return {};
    return Fail(Code::kUnimplemented,
                "the step of " + options.job + " runs on " + std::to_string(nodes) +
                    " nodes, and Stasis cannot save connections between nodes",
                "use --stasis=off, steps on one node each, or --stasis=multinode if its processes "
                "hold no connections to other nodes (docs/slurm.md)");
  }
  return {};
}

Status CheckTcp(const TaskOptions& options, bool has_network_right) {
  if (options.user.tcp != "keep" || has_network_right) return {};
  return Fail(Code::kPermissionDenied,
              "--stasis=tcp=keep is not permitted on this node: " + options.job +
                  " would need CAP_NET_ADMIN to keep its TCP connections",
              "ask the administrator for the argument tcp=keep of stasis.so in plugstack.conf "
              "(docs/slurm.md), or use --stasis=tcp=close, or omit tcp if the program has no TCP "
              "connections when it is dumped");
}

Result<UserOptions> ParseUserOptions(const std::string& text) {
  UserOptions options;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    STASIS_TRY(SetUserOption(text.substr(at, comma - at), options));
    at = comma + 1;
  }
  return options;
}

Result<TaskOptions> ParseTaskOptions(const std::vector<std::string>& words) {
  TaskOptions options;
  size_t at = 0;
  for (; at < words.size() && words[at] != "--"; ++at) {
    const std::string& word = words[at];
    if (word == "--script" || word == "--default") {
      (word == "--script" ? options.script : options.by_default) = true;
      continue;
    }
    if (at + 1 == words.size()) return FailUsage(word + " needs a value");
    const std::string& value = words[++at];
    if (word == "--job") {
      options.job = value;
    } else if (word == "--options") {
      STASIS_ASSIGN(options.user, ParseUserOptions(value));
    } else if (word == "--pidns") {
      std::string_view text = value;
      int64_t socket = 0, init = 0;
      if (!TakeNumber(text, 3, socket) || !text.starts_with(':'))
        return FailUsage("--pidns FD:PID");
      text.remove_prefix(1);
      if (!TakeNumber(text, 2, init) || !text.empty()) return FailUsage("--pidns FD:PID");
      options.pidns_socket = static_cast<int>(socket);
      options.pidns_init = static_cast<int>(init);
    } else if (word == "--member") {
      if (!ParsePlace(value, options.place)) return FailUsage("--member LOCAL/COUNT/NODE");
    } else if (word == "--restarts") {
      std::string_view text = value;
      int64_t number = 0;
      if (!TakeNumber(text, 0, number) || !text.empty()) return FailUsage(value + " is no number");
      options.restarts = static_cast<int>(number);
    } else {
      return FailUsage("unknown option " + word);
    }
  }
  if (at < words.size())
    options.program.assign(words.begin() + static_cast<long>(at) + 1, words.end());
  if (options.job.empty()) return FailUsage("--job NAME is missing");
  if (options.program.empty()) return FailUsage("there is no program to run");
  return options;
}

}  // namespace stasis::slurm
