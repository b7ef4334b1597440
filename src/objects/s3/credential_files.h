// Credentials from ~/.aws/credentials and ~/.aws/config.
#pragma once

#include <map>
#include <string>

#include "objects/s3/credential_services.h"
#include "objects/s3/credentials.h"

namespace stasis::objects::s3 {

// Sections of an INI file by name, and their settings. Nested settings (indented lines) are
// ignored.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;
IniFile ParseIni(const std::string& text);

// Uses the profile that was chosen, else "default". Returns an error if a chosen profile does not
// exist or needs something that is not supported.
Found FromFiles(const ServiceCall& call);

// Runs the command of `credential_process` with a shell, for at most one minute. See
// RunShellCommand() for its errors.
Result<Credentials> FromProcess(const std::string& command, const CallOptions& call);

}  // namespace stasis::objects::s3
