#include "base/result.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "base/limit_hint.h"

namespace stasis {
namespace {

// General advice about an exhausted resource. A caller that knows more replaces it.
std::string HintOf(int errno_value) {
  // Must have at most 191 bytes in total, to fit into a mover's reply.
  constexpr char kMakeRoom[] =
      ": free some space there (`stasis image delete` and `stasis image gc` free space that images "
      "take), or choose a folder elsewhere (`stasis config show`)";
  switch (errno_value) {
    case ENOSPC:
      return std::string("That file system is full") + kMakeRoom;
    case EDQUOT:
      return std::string("Your quota there is used up") + kMakeRoom;
    case EFBIG:
      if (std::string limit = LimitText(RLIMIT_FSIZE); !limit.empty()) {
        return "Raise the limit on the size of files (`ulimit -f`)" + limit + " bytes";
      }
      return "That file system does not support a file of this size: choose a folder elsewhere";
    case EMFILE:
      return "Raise the limit on open files (`ulimit -n`)" + LimitText(RLIMIT_NOFILE);
    case ENFILE:
      return "The machine's limit on open files is reached: raise fs.file-max (sysctl), or end "
             "programs that hold many files";
    case ENOMEM:
      if (std::string limit = LimitText(RLIMIT_AS); !limit.empty()) {
        return "Raise the limit on memory (`ulimit -v`)" + limit + " bytes";
      }
      return {};
    default:
      return {};
  }
}

}  // namespace

std::string_view CodeName(Code code) {
  static constexpr std::string_view kNames[] = {"OK",
                                                "CANCELLED",
                                                "UNKNOWN",
                                                "INVALID_ARGUMENT",
                                                "DEADLINE_EXCEEDED",
                                                "NOT_FOUND",
                                                "ALREADY_EXISTS",
                                                "PERMISSION_DENIED",
                                                "RESOURCE_EXHAUSTED",
                                                "FAILED_PRECONDITION",
                                                "ABORTED",
                                                "OUT_OF_RANGE",
                                                "UNIMPLEMENTED",
                                                "INTERNAL",
                                                "UNAVAILABLE",
                                                "DATA_LOSS"};
  return kNames[static_cast<size_t>(code)];
}

std::string_view DomainName(Domain domain) {
  static constexpr std::string_view kNames[] = {"stasis", "errno",   "cuda", "criu",
                                                "image",  "process", "usage"};
  return kNames[static_cast<size_t>(domain)];
}

std::string Error::ToString() const {
  std::string text;
  for (auto it = context.rbegin(); it != context.rend(); ++it) text += *it + ": ";
  return text + message;
}

Error ErrnoError(int errno_value, std::string what) {
  struct Row {
    int number;
    Code code;
  };
  static constexpr Row kTable[] = {
      {ENOENT, Code::kNotFound},
      {ESRCH, Code::kNotFound},
      {EACCES, Code::kPermissionDenied},
      {EPERM, Code::kPermissionDenied},
      {ENOSPC, Code::kResourceExhausted},
      {EDQUOT, Code::kResourceExhausted},
      {ENOMEM, Code::kResourceExhausted},
      {EFBIG, Code::kResourceExhausted},
      {EMFILE, Code::kResourceExhausted},
      {ENFILE, Code::kResourceExhausted},
      {EINVAL, Code::kInvalidArgument},
      {ENAMETOOLONG, Code::kInvalidArgument},
      {ETIMEDOUT, Code::kDeadlineExceeded},
      {ENOSYS, Code::kUnimplemented},
  };
  Error error;
  error.code = Code::kInternal;
  for (const Row& row : kTable) {
    if (row.number == errno_value) error.code = row.code;
  }
  error.domain = Domain::kErrno;
  error.raw = errno_value;
  error.message = std::move(what) + ": " + std::strerror(errno_value);
  error.hint = HintOf(errno_value);
  return error;
}

int ExitCode(const Error& error) {
  if (error.not_undone) return 6;
  switch (error.code) {
    case Code::kOk:
      return 0;
    case Code::kInvalidArgument:
      // A damaged image is invalid input but not wrong usage: the user cannot correct the command
      // line.
      return error.domain == Domain::kUsage ? 2 : 1;
    case Code::kNotFound:
      return 3;
    case Code::kPermissionDenied:
      return 4;
    case Code::kUnimplemented:
      return 5;
    case Code::kAlreadyExists:  // the name, process id or address is already in use
    case Code::kFailedPrecondition:
    case Code::kAborted:
      return 7;
    default:
      return 1;
  }
}

}  // namespace stasis
