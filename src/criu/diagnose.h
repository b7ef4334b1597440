// CRIU's log made into one sentence that a user can act on.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::criu {

// The first line of the log that is known to be a cause, by the table in diagnose.cc; else CRIU's
// own first error, cut to size. `what` is what was being done ("CRIU could not dump the tree"). The
// code is kInternal where nothing better is known; the domain kCriu, the raw number CRIU's errno.
Error Diagnose(std::string_view log, const std::string& what, int cr_errno);
// The same of a log file. `answer` is what CRIU has put into its answer: its first error, used when
// the log does not exist or holds none.
Error DiagnoseFile(const std::string& log_path, const std::string& what, int cr_errno,
                   std::string_view answer = {});

// Copies a log of any size: all of it, or its first 256 KiB, a line that says how much was left
// out, and its last 768 KiB.
Status CopyLogBounded(const std::string& from, const std::string& to);

}  // namespace stasis::criu
