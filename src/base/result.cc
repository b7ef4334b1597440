#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace stasis {

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
      {EEXIST, Code::kAlreadyExists},
      {EACCES, Code::kPermissionDenied},
      {EPERM, Code::kPermissionDenied},
      {ENOSPC, Code::kResourceExhausted},
      {EDQUOT, Code::kResourceExhausted},
      {ENOMEM, Code::kResourceExhausted},
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
  return error;
}

int ExitCode(const Error& error) {
  if (error.not_undone) return 6;
  switch (error.code) {
    case Code::kOk:
      return 0;
    case Code::kInvalidArgument:
      // A bad image is bad input too, but not wrong usage: nothing that the user types mends it.
      return error.domain == Domain::kUsage ? 2 : 1;
    case Code::kNotFound:
      return 3;
    case Code::kPermissionDenied:
      return 4;
    case Code::kUnimplemented:
      return 5;
    case Code::kFailedPrecondition:
    case Code::kAborted:
      return 7;
    default:
      return 1;
  }
}

}  // namespace stasis
