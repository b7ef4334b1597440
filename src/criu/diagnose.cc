#include "criu/diagnose.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <iterator>
#include <regex>
#include <vector>

#include "base/file.h"

namespace stasis::criu {
namespace {

constexpr size_t kHeadBytes = 256u << 10, kTailBytes = 768u << 10;
constexpr size_t kMaxWordsBytes = 300, kMaxLineBytes = 512;

// Matches an error line of CRIU: "(00.049218) Error (criu/cr-restore.c:1237): Can't fork for 4711:
// File exists". The time exists only at higher log levels. Lines of a task begin with its pid ("
// 4711: Error (...)"). In some source files a module's name precedes the text.
const std::regex& ErrorLine() {
  static const std::regex line(
      R"(^(?:\([0-9.]+\)\s*)?(?:pie: )?(?:\s*\d+: )?Error \([^)]*\): (?:[a-z_-]+: )?(.*)$)");
  return line;
}

// Errors that are not the cause of a failure: consequences of other errors, and errors after which
// CRIU continues.
constexpr const char* kNoise[] = {
    "rlimit: Can't setup",
    "Can't setup RLIMIT_NOFILE",
    "Dumping FAILED",
    "Restoring FAILED",
    "exited, status=",
    "killed by signal 9",
    "RPC client reported",
    "One of more action scripts failed",
    "Killing processes because",
    "Pre dump script failed",
    "Aborting restore due to",
    "script ret code",
    "Unable to detach from",
};

// The first log line that matches any row decides. If it matches several rows, the first of them
// applies. $1 and so on are the groups of the expression.
struct Row {
  const char* pattern;
  const char* sentence;
  const char* hint;
  Code code;
};
constexpr char kRestoreFile[] = "Restore the file to its state at the time of the dump.";
constexpr Row kTable[] = {
    // Conflicts at a restore.
    {"Can't fork for (\\d+): File exists", "the process id $1 is taken",
     "End the process that has it. A zombie keeps its id until its parent has reaped it.",
     Code::kAlreadyExists},
    {"Pid (\\d+) do not match expected (\\d+)", "the process id $2 is taken",
     "End the process that has it.", Code::kAlreadyExists},
    {"Unable to create a thread: -17", "the id of one of the program's threads is taken",
     "End the process that has it.", Code::kAlreadyExists},
    {"Can't fork for (\\d+): (?:Operation not permitted|Permission denied)",
     "this user may not start a process with the id $1",
     "Run it as root; `stasis check` shows what this user may do.", Code::kPermissionDenied},
    {"Can't fork for (\\d+): (.*)", "cannot start a process with the id $1: $2", "",
     Code::kResourceExhausted},
    {"(?:Current|Requested) sid (\\d+) (?:intersects|doesn't match)",
     "the program's process ids collide with those of the restoring session ($1)",
     "Restore it from another session, e.g. with `setsid`.", Code::kAlreadyExists},
    {"Can't open file (.*?)(?: on restore)?: No such file or directory", "the file /$1 is missing",
     kRestoreFile, Code::kFailedPrecondition},
    {"File (.*) has bad size (\\d+) \\(expect (\\d+)\\)",
     "the file /$1 has changed since the dump: it has $2 bytes, but had $3", kRestoreFile,
     Code::kFailedPrecondition},
    {"File (.*) has bad (?:build-ID|mode).*", "the file /$1 has changed since the dump",
     kRestoreFile, Code::kFailedPrecondition},
    {"Can't bind inet socket.*: (Address already in use)",
     "the program's address or port is not available: $1",
     "End the process that listens there. Ports of closed connections become free after a minute.",
     Code::kAlreadyExists},
    {"Can't bind inet socket.*: (Cannot assign requested address)",
     "the program has a socket at an address that this machine does not have: $1",
     "Assign the address to this machine, or restore on a machine that has it.",
     Code::kUnimplemented},
    {"Can't bind inet socket.*: (Permission denied)",
     "the program has no permission for its address or port: $1",
     "Only root may bind to ports below net.ipv4.ip_unprivileged_port_start: restore it as root.",
     Code::kPermissionDenied},
    {"Can't bind unix socket.*|bind.*unix.*Address already in use",
     "the program's unix socket is in use", "End the process that listens at this socket.",
     Code::kAlreadyExists},
    {"Can't connect inet socket back|Can't set destination address|libsoccr.*",
     "an open TCP connection cannot be restored", "Dump with --tcp=close.",
     Code::kFailedPrecondition},
    {"Need to set the --tcp-close options", "the program was dumped with --tcp=close",
     "Restore with --tcp=close.", Code::kInvalidArgument},
    {"Don't have tty to inherit session from", "the program had a terminal, and none is available",
     "Restore it from a terminal.", Code::kFailedPrecondition},
    {"No task found with sid (\\d+)",
     "the program's terminal belonged to the session $1, which is "
     "not part of the tree",
     "Dump the session's leader instead.", Code::kFailedPrecondition},
    {"Can not set (flock|posix lock|ofd lock)", "another process holds a file lock of the program",
     "End the program that holds it.", Code::kFailedPrecondition},
    {"Not supported images version|Too old image", "another version of CRIU made the image",
     "Restore with the CRIU of the dump, or with a newer one.", Code::kFailedPrecondition},
    {"(?:Head magic|Magic) doesn't match for (.*)|Unexpected EOF on (.*)|Failed unpacking object.*",
     "an image file of CRIU is damaged ($1$2)", "`stasis image verify` lists the damaged files.",
     Code::kDataLoss},
    {"Can't open core data for|Image corrupt|Corrupt|No IDS for root task|image corruption",
     "CRIU's images are damaged or not complete", "`stasis image verify` lists the damaged files.",
     Code::kDataLoss},
    {"CPU instruction capabilities do not match|CPU.*(?:feature|xsave|fpu).*(?:not|mis).*",
     "this processor lacks features that the program uses",
     "Restore on a machine with the same or a newer processor.", Code::kFailedPrecondition},
    {"Unable to request (.*)|No suitable area for task_restore",
     "CRIU finds no free part of the program's address space for itself", "", Code::kInternal},
    // The plugin for AMD GPUs.
    {"(?:f?stat error for /dev/kfd|failed to open kfd in plugin): No such file or directory",
     "CRIU's plugin for AMD GPUs finds no /dev/kfd on this machine",
     "Load the kernel driver amdgpu (`modprobe amdgpu`); in a container, add the device /dev/kfd.",
     Code::kUnimplemented},
    {"failed to open kfd in plugin: (.*)", "CRIU's plugin for AMD GPUs cannot open /dev/kfd: $1",
     "Run it as root, or as a member of the group that owns /dev/kfd.", Code::kPermissionDenied},
    {"CR not supported on current kernel \\(current:([0-9.]+) min:([0-9.]+)\\)",
     "the kernel driver amdgpu cannot save GPU state: its interface is version $1, and $2 is "
     "needed",
     "Use a newer kernel or amdgpu-dkms.", Code::kUnimplemented},
    {"Number of devices mismatch \\(checkpointed:(\\d+) local:(\\d+)\\)",
     "the dump was made with $1 AMD GPUs, and this machine has $2",
     "Restore it on a machine with the same GPUs.", Code::kUnimplemented},
    {"Failed to match all GPU groups|Failed to match remaining nodes|Number of xgmi groups "
     "mismatch.*"
     "|Failed to map GPUs",
     "the AMD GPUs of this machine, their links or their firmware differ from those of the dump",
     "Restore it on a machine with the same GPUs and firmware.", Code::kUnimplemented},
    {"Failed to open (?:/dev/dri/)?render.*", "the GPU's render node cannot be opened: $&",
     "Run it as root, or as a member of the groups `render` and `video`.", Code::kPermissionDenied},
    {"Failed to call (?:process info|dumper \\(process\\)) ioctl.*|Failed to drain the BO.*|Failed "
     "to "
     "dump \\(ret.*",
     "the kernel driver amdgpu could not save the GPU state: $&", "", Code::kInternal},
    {"(?:Restore|restore late) ioctl failed.*|Failed to fill the BO.*|Failed to restore "
     "\\(ret.*|Failed "
     "to unpause process.*",
     "the kernel driver amdgpu could not restore the GPU state: $&", "", Code::kInternal},
    {"Missing required plugin: (.*)", "CRIU has no plugin $1, which the image needs",
     "Restore it with the installation that made it.", Code::kUnimplemented},
    // Resources that a dump does not support.
    {"Connected TCP socket", "the program holds an open TCP connection",
     "Close it with --tcp=close, or keep it with --tcp=keep (in a task of Slurm: "
     "--stasis=tcp=close or tcp=keep).",
     Code::kUnimplemented},
    {"Locking (?:connection|network) failed using nftables",
     "the packets of the program's TCP connections cannot be blocked with nftables",
     "Load the kernel module nf_tables, or, as root, dump with --criu-opt network-lock=iptables.",
     Code::kUnimplemented},
    {"In-flight connection", "the program has not accepted a TCP connection yet",
     "Try again, or drop it with --criu-opt skip-in-flight.", Code::kFailedPrecondition},
    {"Unsupported proto 262", "the program holds a multipath TCP socket",
     "Start it with GODEBUG=multipathtcp=0 (Go programs).", Code::kUnimplemented},
    {"Unsupported proto (\\d+)", "the program holds a socket of IP protocol $1", "",
     Code::kUnimplemented},
    {"Can't dump half of stream unix connection.*|External socket is used.*",
     "the program is connected to a unix socket outside of its tree",
     "Have the program close the connection first, or dump it together with the other program.",
     Code::kUnimplemented},
    {"Unix socket (\\d+) (?:with unreachable|without) peer.*|Dangling connection.*",
     "the program holds a unix connection whose other end cannot be reached",
     "Have the program close the connection first.", Code::kUnimplemented},
    {"Some file locks are hold.*", "the program holds a file lock",
     "Use --file-locks to lock it again at the restore.", Code::kUnimplemented},
    {"Can't dump file (\\d+) of that type \\[\\d+\\] \\((?:anon|chr|unknown|reg) (.*)\\)",
     "the program holds a file that CRIU cannot save (fd $1: $2)",
     "`stasis check TARGET` lists what prevents a dump.", Code::kUnimplemented},
    {"send_fds failed \\(-22\\)",
     "the program holds a file that cannot be passed to another process, such as an io_uring",
     "Start it with USE_LIBUV=0 (PyTorch) or UV_USE_IO_URING=0 (Node.js).", Code::kUnimplemented},
    {"Can't handle non-regular mapping on (\\d+)'s map.*",
     "process $1 has mapped a device, which CRIU cannot save",
     "A GPU program must release its GPU before the dump.", Code::kUnimplemented},
    {"Can't dump ghost file (.*) of (\\d+) size.*",
     "the program holds the deleted file $1 of $2 bytes, more than the limit",
     "Raise the limit with --criu-opt ghost-limit=BYTES.", Code::kUnimplemented},
    {"Can't create link remap for (.*?)\\..*",
     "the program has the file $1 open, which was deleted at this path but has another hard link",
     "Allow a temporary link to it with --link-remap.", Code::kUnimplemented},
    {"Can't lookup mount=\\d+ for fd=(-?\\d+) path=(.*)",
     "the file $2 is on a mount that does not exist in the program's mount namespace", "",
     Code::kUnimplemented},
    {"A session leader of .*outside of its pid namespace",
     "the program belongs to a session that was started outside of its pid namespace",
     "Start it with `setsid`, or with `stasis run`.", Code::kUnimplemented},
    {"The root process (\\d+) is not a session leader.*|Found dangling tty.*",
     "the program belongs to a session or terminal outside of its tree",
     "Allow it with --criu-opt shell-job.", Code::kFailedPrecondition},
    {"Found slave peer index (\\d+).*",
     "the program holds the terminal /dev/pts/$1, whose other "
     "side is outside of its tree",
     "Allow it with --criu-opt shell-job.", Code::kFailedPrecondition},
    {"The criu itself is within dumped tree", "the program's process tree contains this command",
     "Run it outside of the target, for example in another terminal.", Code::kInvalidArgument},
    {"Unseizable non-zombie (\\d+) found.*|SEIZE (\\d+).*|Unable to seize (\\d+).*",
     "process $1$2$3 cannot be stopped: another program traces it, or tracing it is not permitted",
     "Detach the debugger, or run the command as root.", Code::kPermissionDenied},
    {"Timeout reached.*", "the program could not be stopped in time",
     "Allow more time with --criu-opt freeze-timeout=SECONDS.", Code::kDeadlineExceeded},
    {"Unexpected rt vDSO area bounds.*|Can't (?:fixup|find) vdso.*|.*[Vv][Dd][Ss][Oo].*",
     "this CRIU does not support this kernel (vDSO)", "Use a newer CRIU: `./run setup`.",
     Code::kUnimplemented},
    {"Nested pid namespaces are not supported.*|.*pid namespace.*",
     "the program's pid namespace cannot be saved: $&", "", Code::kUnimplemented},
    {"(?:Mount|mnt).*(?:unreachable|doesn't have a proper root mount|unsupported).*",
     "a mount of the program cannot be saved: $&", "Name it with --external 'mnt[PATH]:NAME'.",
     Code::kUnimplemented},
    // Limits of the machine.
    {".*: No space left on device", "the disk is full",
     "Free disk space, or dump to another folder with -d DIR.", Code::kResourceExhausted},
    {".*: Disk quota exceeded", "the disk quota is used up",
     "Free disk space, or dump to another folder with -d DIR.", Code::kResourceExhausted},
    {".*: Cannot allocate memory", "there is not enough memory", "", Code::kResourceExhausted},
    {".*: File too large", "a file size limit was exceeded",
     "Raise the limit of the command or of the daemon (`ulimit -f`).", Code::kResourceExhausted},
    {".*inotify.*: Too many open files", "this user has too many inotify instances",
     "Raise fs.inotify.max_user_instances (sysctl), or end programs that watch files.",
     Code::kResourceExhausted},
    {".*: Too many open files", "a limit on open files was reached",
     "Raise the limit of the command or of the daemon (`ulimit -n`).", Code::kResourceExhausted},
    {".*: Input/output error", "the storage failed: $&", "", Code::kDataLoss},
    {".*[Ss]eccomp.*", "CRIU cannot save or restore the program's seccomp filters: $&",
     "Run as root, outside of a restricted container.", Code::kPermissionDenied},
    {"(?:CRIU needs to have|Running as non-root|CRIU is not supported).*|.*check_caps.*|"
     ".*CAP_SYS_ADMIN.*",
     "this user may not dump or restore processes",
     "Run it as root; `stasis check` shows what this user may do.", Code::kPermissionDenied},
    {".*: (?:Operation not permitted|Permission denied)", "CRIU lacks a permission: $&",
     "`stasis check` shows what this user may do.", Code::kPermissionDenied},
};

std::string Cut(const std::string& text) {
  return text.size() <= kMaxWordsBytes ? text : text.substr(0, kMaxWordsBytes) + "...";
}

// Returns the texts of the error lines, in order, without the errors in kNoise.
std::vector<std::string> Errors(std::string_view log) {
  std::vector<std::string> errors;
  while (!log.empty()) {
    std::string line(log.substr(0, log.find('\n')));
    log.remove_prefix(std::min(log.size(), line.size() + 1));
    // Real error lines are short. Matching a long line is slow and recurses deeply.
    if (line.size() > kMaxLineBytes) line.resize(kMaxLineBytes);
    if (line.find("Error (") == std::string::npos) continue;
    std::smatch match;
    if (!std::regex_match(line, match, ErrorLine())) continue;
    std::string text = match[1];
    bool noise = false;
    for (const char* words : kNoise) noise |= text.find(words) != std::string::npos;
    if (!noise) errors.push_back(std::move(text));
  }
  return errors;
}

Result<std::string> ReadBounded(const std::string& path) {
  STASIS_ASSIGN(UniqueFd file, Open(path, O_RDONLY));
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return FailErrno(errno, "stat " + path);
  auto size = static_cast<size_t>(info.st_size);
  if (size <= kHeadBytes + kTailBytes) {
    std::string text(size, '\0');
    STASIS_TRY(PreadAll(file.get(), text.data(), size, 0));
    return text;
  }
  std::string head(kHeadBytes, '\0'), tail(kTailBytes, '\0');
  STASIS_TRY(PreadAll(file.get(), head.data(), head.size(), 0));
  STASIS_TRY(PreadAll(file.get(), tail.data(), tail.size(), size - kTailBytes));
  return head + "\n[" + std::to_string(size - kHeadBytes - kTailBytes) + " bytes omitted]\n" + tail;
}

// The expressions of kTable, in order. Compiled once, because a log may have thousands of error
// lines.
const std::vector<std::regex>& TablePatterns() {
  static const auto& patterns = *[] {
    auto* compiled = new std::vector<std::regex>;
    for (const Row& row : kTable) compiled->emplace_back(row.pattern);
    return compiled;
  }();
  return patterns;
}

}  // namespace

Error Diagnose(std::string_view log, const std::string& what, int cr_errno) {
  Error error;
  error.code = Code::kInternal;
  error.domain = Domain::kCriu;
  error.raw = cr_errno;
  std::vector<std::string> errors = Errors(log);
  for (const std::string& text : errors) {
    for (size_t i = 0; i < std::size(kTable); ++i) {
      const Row& row = kTable[i];
      std::smatch match;
      if (!std::regex_search(text, match, TablePatterns()[i])) continue;
      error.code = row.code;
      error.message = what + ": " + Cut(match.format(row.sentence));
      error.hint = row.hint;
      return error;
    }
  }
  error.message =
      what + (errors.empty() ? ": its log contains no error" : ": " + Cut(errors.front()));
  return error;
}

Error DiagnoseFile(const std::string& log_path, const std::string& what, int cr_errno,
                   std::string_view answer) {
  std::string log = ReadBounded(log_path).value_or("");
  Error error = Diagnose(Errors(log).empty() ? answer : log, what, cr_errno);
  if (error.hint.empty()) error.hint = "CRIU's log is " + log_path + ".";
  return error;
}

Status CopyLogBounded(const std::string& from, const std::string& to) {
  STASIS_ASSIGN(std::string text, ReadBounded(from));
  STASIS_ASSIGN(UniqueFd file, Open(to, O_WRONLY | O_CREAT | O_TRUNC));
  return WriteAll(file.get(), text);
}

}  // namespace stasis::criu
