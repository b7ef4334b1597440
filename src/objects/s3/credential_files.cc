#include "objects/s3/credential_files.h"

#include <algorithm>

#include "base/erase.h"
#include "base/file.h"
#include "base/shell_command.h"

namespace stasis::objects::s3 {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxProcessOutput = 64 << 10;
constexpr std::chrono::seconds kProcessTimeout{60};

std::string Trim(std::string_view text) {
  static constexpr char kSpaces[] = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1));
}

// Returns the settings of one file, or no settings if the file does not exist.
Result<IniFile> ReadIni(const CredentialOptions& options, const char* variable, const char* name) {
  std::string path = options.Variable(variable);
  if (path.empty()) {
    if (options.home.empty()) return IniFile{};
    path = options.home + "/.aws/" + name;
  }
  auto text = ReadFile(path, kMaxFileBytes);
  if (!text && text.error().code == Code::kNotFound) return IniFile{};
  if (!text) return Fail(std::move(text).error());
  return ParseIni(*text);
}

Found FromProfile(const std::map<std::string, std::string>& settings, const std::string& what,
                  const ServiceCall& call) {
  auto setting = [&](const char* name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string() : found->second;
  };
  if (!setting("web_identity_token_file").empty() && !setting("role_arn").empty()) {
    STASIS_ASSIGN(auto found,
                  AssumeRoleWithWebIdentity(call, setting("web_identity_token_file"),
                                            setting("role_arn"), setting("role_session_name")));
    return found;
  }
  if (!setting("role_arn").empty() || !setting("sso_session").empty() ||
      !setting("sso_start_url").empty()) {
    return Fail(
        Code::kUnimplemented, what + " assumes a role or signs in by SSO",
        "use another profile, which has only the line `credential_process = aws configure "
        "export-credentials --format process --profile NAME`, with the name of this profile");
  }
  if (!setting("aws_access_key_id").empty() && !setting("aws_secret_access_key").empty()) {
    return Credentials{{setting("aws_access_key_id"), setting("aws_secret_access_key"),
                        setting("aws_session_token")},
                       std::nullopt,
                       what};
  }
  if (!setting("credential_process").empty()) {
    STASIS_ASSIGN(auto found, FromProcess(setting("credential_process"), call.limits));
    return found;
  }
  return std::nullopt;
}

}  // namespace

IniFile ParseIni(const std::string& text) {
  IniFile file;
  std::map<std::string, std::string>* section = nullptr;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view raw = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const std::string line = Trim(raw);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      section = &file[Trim(std::string_view(line).substr(1, line.find(']') - 1))];
      continue;
    }
    const size_t equals = line.find('=');
    const bool nested = raw[0] == ' ' || raw[0] == '\t';
    if (section == nullptr || equals == line.npos || nested) continue;
    (*section)[Trim(line.substr(0, equals))] = Trim(line.substr(equals + 1));
  }
  return file;
}

Found FromFiles(const ServiceCall& call) {
  const CredentialOptions& options = call.options;
  std::string profile = options.profile;
  if (profile.empty()) profile = options.Variable("AWS_PROFILE");
  const bool chosen = !profile.empty();
  if (!chosen) profile = "default";

  STASIS_ASSIGN(const IniFile credentials,
                ReadIni(options, "AWS_SHARED_CREDENTIALS_FILE", "credentials"));
  STASIS_ASSIGN(const IniFile config, ReadIni(options, "AWS_CONFIG_FILE", "config"));
  const std::string config_section = profile == "default" ? profile : "profile " + profile;
  const auto in_credentials = credentials.find(profile);
  const auto in_config = config.find(config_section);
  if (chosen && in_credentials == credentials.end() && in_config == config.end()) {
    return Fail(Code::kNotFound,
                "neither ~/.aws/credentials nor ~/.aws/config has profile " + profile,
                "check the name of the profile");
  }
  // Settings in the credentials file override those in the config file.
  std::map<std::string, std::string> settings;
  if (in_credentials != credentials.end()) settings = in_credentials->second;
  if (in_config != config.end())
    settings.insert(in_config->second.begin(), in_config->second.end());
  const std::string what = "profile " + profile + " in ~/.aws";
  STASIS_ASSIGN(auto found, FromProfile(settings, what, call));
  if (!found && chosen) {
    return Fail(Code::kNotFound, what + " has no credentials",
                "add aws_access_key_id and aws_secret_access_key, or credential_process");
  }
  return found;
}

Result<Credentials> FromProcess(const std::string& command, const CallOptions& call) {
  const std::string what = "credential_process";
  auto output =
      RunShellCommand({what, command, kMaxProcessOutput},
                      Deadline::Sooner(call.deadline, Deadline::In(kProcessTimeout)), call.stop);
  if (!output) return Fail(std::move(output).error());
  auto credentials = ParseCredentialJson(*output, what);
  Erase(*output);
  return credentials;
}

}  // namespace stasis::objects::s3
