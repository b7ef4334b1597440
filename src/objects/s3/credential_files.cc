#include "objects/s3/credential_files.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/subprocess.h"

namespace stasis::objects::s3 {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxProcessOutput = 64 << 10;
constexpr std::chrono::seconds kProcessTimeout{60};
constexpr int kStopCheckMs = 200;

std::string Trim(std::string_view text) {
  static constexpr char kSpaces[] = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1));
}

// Returns the settings of one file, without any if the file does not exist.
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

// Reads until end of file, which a child causes at its exit.
Result<std::string> ReadAnswer(int fd, const CallOptions& call, const Deadline& deadline) {
  std::string answer;
  for (;;) {
    if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
    if (deadline.passed()) return Fail(Code::kDeadlineExceeded, "it did not end in time");
    pollfd item{fd, POLLIN, 0};
    const int left = deadline.PollTimeout();
    if (::poll(&item, 1, left < 0 ? kStopCheckMs : std::min(left, kStopCheckMs)) <= 0) continue;
    char buffer[4096];
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size == 0) return answer;
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return FailErrno(errno, "read its answer");
    answer.append(buffer, static_cast<size_t>(size));
    if (answer.size() > kMaxProcessOutput) return Fail(Code::kOutOfRange, "its answer is too long");
  }
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
    return Fail(Code::kUnimplemented, what + " assumes a role or signs in by SSO",
                "add to it: credential_process = aws configure export-credentials --format process "
                "--profile NAME, with the name of a profile that does so");
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
  // Settings of the credentials file come before those of the other.
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
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "create a pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  SpawnOptions spawn;
  spawn.argv = {"/bin/sh", "-c", command};
  spawn.fds[1] = writer.get();
  STASIS_ASSIGN(auto child, Subprocess::Spawn(spawn));
  writer.Reset();
  const Deadline deadline = Deadline::Sooner(call.deadline, Deadline::In(kProcessTimeout));
  auto answer = ReadAnswer(reader.get(), call, deadline);
  if (!answer) {
    child.Kill(SIGKILL);
    (void)child.Wait();
    return Fail(std::move(answer).error().WithContext("run " + what));
  }
  auto status = child.Wait(deadline);
  if (!status) {
    child.Kill(SIGKILL);
    (void)child.Wait();
    return Fail(std::move(status).error().WithContext("run " + what));
  }
  if (*status != 0) {
    return Fail(Code::kFailedPrecondition, what + " " + DescribeWaitStatus(*status),
                "run it by hand: " + command);
  }
  return ParseCredentialJson(*answer, what);
}

}  // namespace stasis::objects::s3
