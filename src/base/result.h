// How a failure travels: `Result<T>` and the `Error` inside it. No exception leaves a module.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace stasis {

// gRPC's list of status codes, with gRPC's numbers; `ExitCode()` maps them to those of the CLI.
enum class Code : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,   // what the user typed or an input from outside is wrong
  kDeadlineExceeded = 4,  // a phase passed its deadline
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,   // memory, disk, file descriptors
  kFailedPrecondition = 9,  // the target is in the wrong state for this verb
  kAborted = 10,            // busy: another operation holds the target
  kOutOfRange = 11,
  kUnimplemented = 12,  // this machine, or this program, cannot
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,  // an image that is not what it was, or state that could not be brought back
};

// Which layer's words the message holds; `raw` is that layer's own number.
enum class Domain : uint8_t { kStasis, kErrno, kCuda, kCriu, kImage, kProcess, kUsage };

std::string_view CodeName(Code code);
std::string_view DomainName(Domain domain);

// An error says what went wrong in the words of the layer that said it (`message`), what was being
// done to what (`context`, innermost first, added at each boundary), and what to do next (`hint`).
struct Error {
  Code code = Code::kUnknown;
  Domain domain = Domain::kStasis;
  int64_t raw = 0;
  std::string message;
  std::string hint;
  std::vector<std::string> context;
  // The operation failed and what it had done could not be undone: exit code 6.
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

  // "cannot dump job x: writing image: No space left on device": outermost context first.
  std::string ToString() const;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> Fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> Fail(Code code, std::string message, std::string hint = {}) {
  return Fail(Error{code, Domain::kStasis, 0, std::move(message), std::move(hint), {}, false});
}
inline tl::unexpected<Error> Fail(Code code, Domain domain, int64_t raw, std::string message,
                                  std::string hint = {}) {
  return Fail(Error{code, domain, raw, std::move(message), std::move(hint), {}, false});
}

// An error of a system call: `what` is what was being done ("open /x"). Code and hint follow errno;
// of EEXIST the code is kInternal: who tries a user's name, not one of ours, says kAlreadyExists.
Error ErrnoError(int errno_value, std::string what);
inline tl::unexpected<Error> FailErrno(int errno_value, std::string what) {
  return Fail(ErrnoError(errno_value, std::move(what)));
}

// Exit codes of the command line (docs/cli: 0 done, 1 failed and undone, 2 usage, 3 not found,
// 4 not permitted, 5 cannot here, 6 failed and not undone, 7 busy or wrong state).
int ExitCode(const Error& error);

#define STASIS_CONCAT_INNER(a, b) a##b
#define STASIS_CONCAT(a, b) STASIS_CONCAT_INNER(a, b)

// Leaves the function with the error of an expression that returns Status or Result<T>.
#define STASIS_TRY(expr)                                     \
  do {                                                       \
    if (auto stasis_try_ = (expr); !stasis_try_) {           \
      return ::stasis::Fail(std::move(stasis_try_).error()); \
    }                                                        \
  } while (0)

// STASIS_ASSIGN(auto x, F()): x is F()'s value, or the function returns F()'s error.
#define STASIS_ASSIGN(decl, expr) STASIS_ASSIGN_IMPL(STASIS_CONCAT(result_, __LINE__), decl, expr)
#define STASIS_ASSIGN_IMPL(tmp, decl, expr)                \
  auto tmp = (expr);                                       \
  if (!tmp) return ::stasis::Fail(std::move(tmp).error()); \
  decl = std::move(*tmp)

// Adds a context to the error of a Result on its way up.
template <class T>
Result<T> Annotate(Result<T> result, std::string what) {
  if (!result) result.error().WithContext(std::move(what));
  return result;
}

}  // namespace stasis
