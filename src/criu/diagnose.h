// Converts CRIU's log to one error with advice for the user.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis::criu {

// Returns an error for the first line of the log that matches a known cause (table in diagnose.cc),
// else for CRIU's first error line, truncated. `what` is the failed operation ("CRIU could not dump
// the tree"). The code is kInternal if the cause is unknown, the domain is kCriu, and the raw
// number is CRIU's errno.
Error Diagnose(std::string_view log, const std::string& what, int cr_errno);
// Like Diagnose, for a log file. `answer` is the first error in CRIU's answer. It is used if the
// log is missing or contains no error.
Error DiagnoseFile(const std::string& log_path, const std::string& what, int cr_errno,
                   std::string_view answer = {});

// Copies a log. From a large one it copies the first 256 KiB, a line that gives the number of
// omitted bytes, and the last 768 KiB.
Status CopyLogBounded(const std::string& from, const std::string& to);

}  // namespace stasis::criu
