#include "objects/s3/ca_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace stasis::objects::s3 {
namespace {

constexpr const char* kSystemFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL, Fedora
    "/etc/pki/tls/certs/ca-bundle.crt",                   // older RHEL
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/var/lib/ca-certificates/ca-bundle.pem",             // SUSE
    "/etc/ssl/cert.pem",                                  // Alpine
};

Result<std::string> Named(const std::string& path, const std::string& by) {
  if (::access(path.c_str(), R_OK) == 0) return path;
  return Fail(Code::kFailedPrecondition,
              "the CA file " + path + by + " cannot be read: " + std::strerror(errno));
}

}  // namespace

std::span<const char* const> SystemCaFiles() { return kSystemFiles; }

Result<std::string> FindCaFile(const std::string& setting, const std::string& ssl_cert_file,
                               std::span<const char* const> system_files) {
  if (!setting.empty()) return Named(setting, "");
  if (!ssl_cert_file.empty()) return Named(ssl_cert_file, ", which SSL_CERT_FILE names,");
  for (const char* path : system_files) {
    if (::access(path, R_OK) == 0) return path;
  }
  return Fail(Code::kFailedPrecondition,
              "this machine has no file of CA certificates, so https cannot be used",
              "install the package ca-certificates, or give a CA file");
}

}  // namespace stasis::objects::s3
