#include "objects/s3/credential_services.h"

#include <algorithm>

#include "base/file.h"
#include "objects/printable.h"
#include "objects/s3/xml.h"

namespace stasis::objects::s3 {
namespace {

constexpr size_t kMaxTokenBytes = 64 << 10;
constexpr size_t kMaxServiceAnswer = 64 << 10;
constexpr std::chrono::seconds kServiceTimeout{20};
// Outside of EC2, packets to the service's address may get no answer at all, so the time limit is
// short.
constexpr std::chrono::seconds kMetadataTimeout{1};

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.pop_back();
  }
  return text;
}

// Returns false for a text that could start another header if it were sent as a header's value.
bool IsHeaderValue(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

Result<HttpAnswer> Ask(const ServiceCall& call, HttpRequest request,
                       std::chrono::milliseconds timeout) {
  request.max_body_bytes = kMaxServiceAnswer;
  request.deadline = Deadline::Sooner(call.limits.deadline, Deadline::In(timeout));
  request.stop = call.limits.stop;
  return call.engine.Do(request);
}

tl::unexpected<Error> Refused(const std::string& what, const HttpAnswer& answer) {
  return Fail(Code::kPermissionDenied, what + " answers " + std::to_string(answer.status));
}

// Returns the host of a URL, without the port.
std::string HostOf(const std::string& url) {
  const size_t begin = url.find("://");
  if (begin == url.npos) return {};
  std::string host = url.substr(begin + 3, url.find_first_of("/?#", begin + 3) - begin - 3);
  if (host.find('@') != host.npos) return {};
  if (host.starts_with("[")) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

// Returns true if the token may be sent to the URL. Without TLS, it may go only to this host or to
// a well-known address, even if an environment variable names another host.
bool MayGetToken(const std::string& url) {
  static constexpr const char* kHosts[] = {"localhost",     "127.0.0.1",      "[::1]",
                                           "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  if (url.starts_with("https://")) return true;
  const std::string host = HostOf(url);
  return url.starts_with("http://") && std::any_of(std::begin(kHosts), std::end(kHosts),
                                                   [&](const char* each) { return host == each; });
}

std::string StsEndpoint(const ServiceCall& call) {
  if (std::string own = call.options.Variable("AWS_ENDPOINT_URL_STS"); !own.empty()) return own;
  std::string region = call.options.region;
  if (region.empty()) region = call.options.Variable("AWS_REGION");
  return region.empty() ? "https://sts.amazonaws.com" : "https://sts." + region + ".amazonaws.com";
}

}  // namespace

Result<Credentials> ParseStsAnswer(const HttpAnswer& answer, const std::string& what) {
  auto root = ParseXml(answer.body);
  if (answer.status != 200) {
    std::string text = what + " answers " + std::to_string(answer.status);
    const XmlElement* error = root ? root->Find("Error") : nullptr;
    if (error != nullptr) text += " " + error->TextOf("Code") + ": " + error->TextOf("Message");
    return Fail(Code::kPermissionDenied, Printable(text, 400),
                "check the trust policy of the role, and that the token has not expired");
  }
  if (!root) return Fail(std::move(root).error().WithContext(what));
  const XmlElement* result = root->Find("AssumeRoleWithWebIdentityResult");
  const XmlElement* element = result != nullptr ? result->Find("Credentials") : nullptr;
  if (element == nullptr) return Fail(Code::kInvalidArgument, what + " returned no credentials");
  Credentials credentials;
  credentials.key = {element->TextOf("AccessKeyId"), element->TextOf("SecretAccessKey"),
                     element->TextOf("SessionToken")};
  credentials.source = what;
  if (credentials.key.key_id.empty() || credentials.key.secret.empty()) {
    return Fail(Code::kInvalidArgument, what + " returned no credentials");
  }
  credentials.expires = ParseTime(element->TextOf("Expiration"));
  if (!credentials.expires) {
    return Fail(Code::kInvalidArgument, what + " returned credentials without an expiration time");
  }
  return credentials;
}

Result<Credentials> AssumeRoleWithWebIdentity(const ServiceCall& call,
                                              const std::string& token_file,
                                              const std::string& role_arn,
                                              const std::string& session_name) {
  const std::string what = "STS (web identity)";
  STASIS_ASSIGN(const std::string token, ReadFile(token_file, kMaxTokenBytes));
  const std::string body = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=" +
                           PercentEncode(role_arn, false) + "&RoleSessionName=" +
                           PercentEncode(session_name.empty() ? "stasis" : session_name, false) +
                           "&WebIdentityToken=" + PercentEncode(Trimmed(token), false);
  const std::string_view part = body;
  HttpRequest request;
  request.method = "POST";
  request.url = StsEndpoint(call) + "/";
  request.headers = {"Content-Type: application/x-www-form-urlencoded"};
  request.body = {&part, 1};
  STASIS_ASSIGN(const HttpAnswer answer,
                Annotate(Ask(call, std::move(request), kServiceTimeout), what));
  return ParseStsAnswer(answer, what);
}

Found FromWebIdentity(const ServiceCall& call) {
  const std::string file = call.options.Variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role = call.options.Variable("AWS_ROLE_ARN");
  if (file.empty() || role.empty()) return std::nullopt;
  STASIS_ASSIGN(auto found, AssumeRoleWithWebIdentity(
                                call, file, role, call.options.Variable("AWS_ROLE_SESSION_NAME")));
  return found;
}

Found FromContainer(const ServiceCall& call) {
  const std::string relative = call.options.Variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  std::string url = call.options.Variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && url.empty()) return std::nullopt;
  if (!relative.empty()) {
    if (relative[0] != '/') {
      return Fail(Code::kInvalidArgument,
                  "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with a slash");
    }
    url = call.options.container_endpoint + relative;
  } else if (!MayGetToken(url)) {
    return Fail(Code::kInvalidArgument,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor a known local address");
  }
  const std::string what = "the container's endpoint";
  std::string token = call.options.Variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = call.options.Variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
      !file.empty()) {
    STASIS_ASSIGN(token, ReadFile(file, kMaxTokenBytes));
    token = Trimmed(token);
  }
  if (!IsHeaderValue(token)) {
    return Fail(Code::kInvalidArgument, "the container's authorization token is not one line");
  }
  HttpRequest request;
  request.method = "GET";
  request.url = url;
  if (!token.empty()) request.headers = {"Authorization: " + token};
  STASIS_ASSIGN(const HttpAnswer answer,
                Annotate(Ask(call, std::move(request), kServiceTimeout), what));
  if (answer.status != 200) return Refused(what, answer);
  STASIS_ASSIGN(auto found, ParseCredentialJson(answer.body, what));
  return found;
}

Found FromMetadata(const ServiceCall& call) {
  if (call.options.Variable("AWS_EC2_METADATA_DISABLED") == "true") return std::nullopt;
  const std::string what = "the metadata service of EC2";
  const std::string roles =
      call.options.metadata_endpoint + "/latest/meta-data/iam/security-credentials/";
  HttpRequest ask_token;
  ask_token.method = "PUT";
  ask_token.url = call.options.metadata_endpoint + "/latest/api/token";
  ask_token.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"};
  auto token = Ask(call, std::move(ask_token), kMetadataTimeout);
  if (!token || token->status != 200) {
    if (call.limits.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
    return std::nullopt;
  }
  if (!IsHeaderValue(token->body)) return Fail(Code::kInvalidArgument, what + " gives no token");

  auto get = [&](const std::string& url) {
    HttpRequest request;
    request.method = "GET";
    request.url = url;
    request.headers = {"X-aws-ec2-metadata-token: " + token->body};
    return Annotate(Ask(call, std::move(request), kServiceTimeout), what);
  };
  STASIS_ASSIGN(const HttpAnswer role, get(roles));
  if (role.status == 404) return std::nullopt;  // the instance has no role
  if (role.status != 200) return Refused(what, role);
  const std::string name = role.body.substr(0, role.body.find('\n'));
  STASIS_ASSIGN(const HttpAnswer answer, get(roles + PercentEncode(name, false)));
  if (answer.status != 200) return Refused(what, answer);
  STASIS_ASSIGN(auto found, ParseCredentialJson(answer.body, what));
  return found;
}

}  // namespace stasis::objects::s3
