// Error handling: `Result<T>` and `Error`. No exception leaves a module.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace stasis {

// gRPC's status codes with gRPC's numbers. `ExitCode()` maps them to exit codes of the command
// line.
enum class Code : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,   // the user's input or other outside input is wrong
  kDeadlineExceeded = 4,  // a phase exceeded its deadline
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,   // memory, disk, file descriptors
  kFailedPrecondition = 9,  // the target is in the wrong state for this command
  kAborted = 10,            // another operation holds the target
  kOutOfRange = 11,
  kUnimplemented = 12,  // not supported by this machine or for this program
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,  // a damaged image, or state that could not be restored
};

// The layer that the message comes from; `raw` is that layer's error number.
enum class Domain : uint8_t { kStasis, kErrno, kCuda, kCriu, kImage, kProcess, kUsage };

std::string_view CodeName(Code code);
std::string_view DomainName(Domain domain);

// An error consists of the failing layer's own message (`message`), the operations that were in
// progress (`context`, innermost first, added at each boundary), and advice (`hint`).
struct Error {
  Code code = Code::kUnknown;
  Domain domain = Domain::kStasis;
  int64_t raw = 0;
  std::string message;
  std::string hint;
  std::vector<std::string> context;
  // The operation failed and could not be rolled back: exit code 6.
  bool not_undone = false;

  Error& WithHint(std::string text) & {
    hint = std::move(text);
    return *this;
  }
  Error&& WithHint(std::string text) && {
    hint = std::move(text);
    return std::move(*this);
  }
  Error& WithContext(std::string what) & {
    context.push_back(std::move(what));
    return *this;
  }
  Error&& WithContext(std::string what) && {
    context.push_back(std::move(what));
    return std::move(*this);
  }

  // Formats the error with the outermost context first: "cannot dump job x: writing image: No space
  // left on device".
  std::string ToString() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// Return these from a function whose result is a Status or Result<T>.
inline tl::unexpected<Error> Fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> Fail(Code code, std::string message, std::string hint = {}) {
  return Fail(Error{code, Domain::kStasis, 0, std::move(message), std::move(hint), {}, false});
}
inline tl::unexpected<Error> Fail(Code code, Domain domain, int64_t raw, std::string message,
                                  std::string hint = {}) {
  return Fail(Error{code, domain, raw, std::move(message), std::move(hint), {}, false});
}

// Returns the error of a system call. `what` names the operation ("open /x"). Code and hint follow
// errno. EEXIST gives kInternal; a caller that creates a name chosen by the user must set
// kAlreadyExists.
Error ErrnoError(int errno_value, std::string what);
inline tl::unexpected<Error> FailErrno(int errno_value, std::string what) {
  return Fail(ErrnoError(errno_value, std::move(what)));
}

// Returns the exit code of the command line (docs/commands.md): 1 failed and rolled back, 2 usage,
// 3 not found, 4 not permitted, 5 not supported, 6 failed and not rolled back, 7 busy or wrong
// state.
int ExitCode(const Error& error);

#define STASIS_CONCAT_INNER(a, b) a##b
#define STASIS_CONCAT(a, b) STASIS_CONCAT_INNER(a, b)

// Returns from the function if the expression, a Status or Result<T>, is an error.
#define STASIS_TRY(expr)                                     \
  do {                                                       \
    if (auto stasis_try_ = (expr); !stasis_try_) {           \
      return ::stasis::Fail(std::move(stasis_try_).error()); \
    }                                                        \
  } while (0)

// STASIS_ASSIGN(auto x, F()) sets x to the value of F(), or returns F()'s error.
#define STASIS_ASSIGN(decl, expr) STASIS_ASSIGN_IMPL(STASIS_CONCAT(result_, __LINE__), decl, expr)
#define STASIS_ASSIGN_IMPL(tmp, decl, expr)                \
  auto tmp = (expr);                                       \
  if (!tmp) return ::stasis::Fail(std::move(tmp).error()); \
  decl = std::move(*tmp)

// Adds a context to the error of a Result.
template <class T>
Result<T> Annotate(Result<T> result, std::string what) {
  if (!result) result.error().WithContext(std::move(what));
  return result;
}

}  // namespace stasis
