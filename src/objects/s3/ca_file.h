// Finds the certificates of the authorities that TLS trusts.
#pragma once

#include <span>
#include <string>

#include "base/result.h"

namespace stasis::objects::s3 {

// The CA files of Linux distributions, in the order in which they are tried.
std::span<const char* const> SystemCaFiles();

// Returns the path of a file of CA certificates: `setting` if it is not empty, else `ssl_cert_file`
// (the user's SSL_CERT_FILE) if it is not empty, else the first of `system_files` that exists.
// Returns kFailedPrecondition if `setting` or `ssl_cert_file` names a file that cannot be read, or
// if no file of `system_files` exists.
Result<std::string> FindCaFile(const std::string& setting, const std::string& ssl_cert_file,
                               std::span<const char* const> system_files = SystemCaFiles());

}  // namespace stasis::objects::s3
