#include "objects/s3/s3_store.h"

#include <algorithm>
#include <condition_variable>
#include <random>

#include "base/clock.h"
#include "objects/object_key.h"
#include "objects/s3/s3_answer.h"

namespace stasis::objects::s3 {
namespace {

using Action = S3Failure::Action;

// The first delay is multiplied by this if the server has asked for fewer requests.
constexpr int kSlowDownFactor = 5;

bool IsBucketName(const std::string& name) {
  auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (name.size() < 3 || name.size() > 63 || !alphanumeric(name.front()) ||
      !alphanumeric(name.back()) || name.find("..") != name.npos) {
    return false;
  }
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return alphanumeric(c) || c == '.' || c == '-' || c == '_'; });
}

}  // namespace

struct S3Store::Request {
  std::string method;
  std::string key;  // full key; empty for a request about the bucket
  std::vector<std::pair<std::string, std::string>> query;
  std::map<std::string, std::string> headers;
  std::span<const std::string_view> body;
  std::string payload_sha256;
  uint64_t max_body_bytes = 16u << 20;
  std::function<bool(const HttpAnswer&, std::string_view)> write;
  std::string object;  // for messages
  bool absent_is_success = false;
  // Checks a complete answer of status 2xx. If it returns kUnavailable, the request is retried.
  std::function<Status(const HttpAnswer&)> check;
  // Called after an attempt that is retried. Returns an error to give up.
  std::function<Status()> rewind;
  // The error of `write`, which ends the request.
  std::optional<Error> write_error;
};

struct S3Store::Attempt {
  std::optional<HttpAnswer> answer;  // set on success
  Action action = Action::kGiveUp;
  Error error;
};

// The state of one Get().
struct S3Store::Download {
  std::string object;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Sink* sink = nullptr;
  uint64_t done = 0;      // bytes of the range that are written
  uint64_t begin = 0;     // where in the range this attempt begins
  uint64_t received = 0;  // of all attempts
  std::string etag;

  void SetRange(Request& request);
  bool Write(Request& request, const HttpAnswer& head, std::string_view piece);
  Status CheckHead(const HttpAnswer& head);
  Status Rewind(Request& request);
};

void S3Store::Download::SetRange(Request& request) {
  begin = done;
  request.headers["range"] =
      "bytes=" + std::to_string(offset + done) + '-' + std::to_string(offset + bytes - 1);
  // All parts of a range must come from the same version of the object.
  if (done > 0 && !etag.empty()) request.headers["if-match"] = etag;
}

Status S3Store::Download::CheckHead(const HttpAnswer& head) {
  if (head.status != 206) {
    return Fail(Code::kUnimplemented, "the server ignores ranges",
                "Stasis needs a server that supports the Range header");
  }
  const auto given =
      ParseContentRange(head.Header("content-range"), offset + begin, offset + bytes);
  if (!given) {
    return Fail(Code::kUnavailable, "the server sent a different range than requested");
  }
  if (*given != bytes - begin) {
    return Fail(Code::kOutOfRange, object + " is shorter than the requested range");
  }
  etag = head.Header("etag");
  return {};
}

bool S3Store::Download::Write(Request& request, const HttpAnswer& head, std::string_view piece) {
  Status written = CheckHead(head);
  if (written && piece.size() > bytes - done) {
    written = Fail(Code::kUnavailable, "the server sent more bytes than requested");
  }
  if (written) written = sink->Write(piece);
  if (!written) {
    request.write_error = std::move(written).error();
    return false;
  }
  done += piece.size();
  received += piece.size();
  return true;
}

Status S3Store::Download::Rewind(Request& request) {
  if (done > 0) {
    const uint64_t valid = sink->Rewind();
    if (valid > done) return Fail(Code::kInternal, "a sink keeps more bytes than it was given");
    done = valid;
  }
  request.headers.erase("if-match");
  SetRange(request);
  return {};
}

Result<std::unique_ptr<S3Store>> S3Store::Open(const std::string& bucket, const std::string& prefix,
                                               S3Options options) {
  if (!IsBucketName(bucket)) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                "\"" + bucket.substr(0, 80) + "\" is not a valid name of a bucket",
                "names have 3 to 63 letters, digits, dots and hyphens, and begin and end with a "
                "letter or digit");
  }
  if (!prefix.empty()) STASIS_TRY(CheckKey(prefix));
  std::unique_ptr<S3Store> store(
      new S3Store(bucket, prefix.empty() ? prefix : prefix + '/', std::move(options)));
  STASIS_TRY(store->Start());
  return store;
}

Status S3Store::Start() {
  std::string endpoint = options_.endpoint;
  path_style_ =
      options_.path_style.value_or(!endpoint.empty() || bucket_.find('.') != bucket_.npos);
  if (endpoint.empty()) endpoint = "https://s3." + options_.region + ".amazonaws.com";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const size_t separator = endpoint.find("://");
  scheme_ = endpoint.substr(0, separator);
  host_ = separator == endpoint.npos ? "" : endpoint.substr(separator + 3);
  if ((scheme_ != "https" && scheme_ != "http") || host_.empty() ||
      host_.find_first_of("/?#@ \r\n") != host_.npos) {
    return Fail(Code::kInvalidArgument, "the endpoint \"" + endpoint.substr(0, 80) +
                                            "\" is not of the form https://HOST:PORT");
  }
  if (!path_style_) host_ = bucket_ + '.' + host_;
  base_path_ = path_style_ ? '/' + bucket_ + '/' : "/";

  const int count = options_.http.max_bytes_per_second > 0 ? 1 : std::max(options_.engines, 1);
  HttpOptions http = options_.http;
  http.connections = std::max(http.connections / count, 1);
  for (int i = 0; i < count; ++i) {
    STASIS_ASSIGN(auto engine, HttpEngine::Start(http));
    engines_.push_back(std::move(engine));
  }
  credentials_ = std::make_unique<CredentialChain>(options_.credentials, *engines_.front());
  return {};
}

std::string S3Store::FullKey(const std::string& key) const { return prefix_ + key; }

std::string S3Store::ObjectName(const std::string& key) const {
  return "s3://" + bucket_ + '/' + FullKey(key);
}

std::string S3Store::Name() const {
  return "s3://" + bucket_ + (prefix_.empty() ? "" : '/' + prefix_.substr(0, prefix_.size() - 1));
}

Counters S3Store::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

HttpEngine& S3Store::IdleEngine() {
  return **std::min_element(engines_.begin(), engines_.end(),
                            [](const auto& a, const auto& b) { return a->active() < b->active(); });
}

HttpRequest S3Store::Prepare(const Request& request, const Credentials& credentials, int64_t now,
                             const CallOptions& call) const {
  RequestToSign to_sign{request.method, host_,           base_path_ + request.key,
                        request.query,  request.headers, request.payload_sha256};
  if (request.key.empty() && path_style_) to_sign.path.pop_back();  // "/bucket"
  SignedRequest signed_request = Sign(credentials.key, options_.region, to_sign, now);
  HttpRequest http;
  http.method = request.method;
  http.url = scheme_ + "://" + host_ + signed_request.target;
  http.headers = std::move(signed_request.headers);
  http.body = request.body;
  http.max_body_bytes = request.max_body_bytes;
  http.write = request.write;
  http.deadline = call.deadline;
  http.stop = call.stop;
  return http;
}

S3Store::Attempt S3Store::TryOnce(Request& request, const CallOptions& call) {
  auto credentials = credentials_->Get(call);
  if (!credentials) {
    Error error = std::move(credentials).error();
    // The caller would conclude from kNotFound that the object does not exist.
    if (error.code == Code::kNotFound) error.code = Code::kPermissionDenied;
    return {{}, Action::kGiveUp, std::move(error)};
  }
  const int64_t now = NowMs() / 1000;
  auto answer = IdleEngine().Do(Prepare(request, *credentials, now, call));
  if (request.write_error) {
    Error error = *std::exchange(request.write_error, std::nullopt);
    const bool again = error.code == Code::kUnavailable && error.domain == Domain::kStasis;
    return {{}, again ? Action::kRetry : Action::kGiveUp, std::move(error)};
  }
  if (!answer) {
    Error error = std::move(answer).error();
    const Action action = error.code == Code::kUnavailable ? Action::kRetry : Action::kGiveUp;
    return {{}, action, std::move(error)};
  }
  if (answer->status < 200 || answer->status >= 300) {
    S3Failure failure =
        Interpret(*answer, {request.object, bucket_, options_.region, scheme_ + "://" + host_,
                            credentials->key.key_id, credentials->source, now});
    if (request.absent_is_success && failure.s3_code == "NoSuchKey") return {*answer, {}, {}};
    if (failure.action == Action::kRefreshCredentials) credentials_->Discard(*credentials);
    return {{}, failure.action, std::move(failure.error)};
  }
  if (request.check) {
    if (Status checked = request.check(*answer); !checked) {
      Error error = std::move(checked).error();
      const Action action = error.code == Code::kUnavailable ? Action::kRetry : Action::kGiveUp;
      return {{}, action, std::move(error)};
    }
  }
  return {std::move(*answer), Action::kGiveUp, {}};
}

bool S3Store::WaitForRetry(int attempt, bool slowly, const CallOptions& call) const {
  thread_local std::minstd_rand random{std::random_device{}()};
  const int64_t factor = (int64_t{1} << std::min(attempt - 1, 20)) * (slowly ? kSlowDownFactor : 1);
  const int64_t bound = std::min<int64_t>(options_.first_retry_delay.count() * factor,
                                          options_.max_retry_delay.count());
  const std::chrono::milliseconds delay{
      std::uniform_int_distribution<int64_t>(bound / 2, std::max<int64_t>(bound, 1))(random)};
  const int left = call.deadline.PollTimeout();
  if (left >= 0 && left <= delay.count()) return false;
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, call.stop, delay, [] { return false; });
  return !call.stop.stop_requested();
}

Result<HttpAnswer> S3Store::Send(Request& request, const CallOptions& call) {
  bool refreshed = false;
  for (int attempt = 1;; ++attempt) {
    {
      const std::lock_guard lock(mutex_);
      ++counters_.requests;
      if (attempt > 1) ++counters_.retries;
      if (request.method == "PUT") {
        for (std::string_view part : request.body) counters_.bytes_sent += part.size();
      }
    }
    Attempt result = TryOnce(request, call);
    if (result.answer) return std::move(*result.answer);
    Error error = std::move(result.error);
    if (result.action == Action::kRefreshCredentials && !refreshed) {
      refreshed = true;
    } else if (result.action != Action::kRetry && result.action != Action::kRetrySlowly) {
      return Fail(std::move(error));
    } else if (attempt >= options_.max_attempts ||
               !WaitForRetry(attempt, result.action == Action::kRetrySlowly, call)) {
      if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
      return Fail(
          std::move(error).WithContext("gave up after " + std::to_string(attempt) + " attempts"));
    }
    if (request.rewind) STASIS_TRY(request.rewind());
  }
}

Status S3Store::Put(const std::string& key, std::span<const std::string_view> parts,
                    const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  Request request;
  request.method = "PUT";
  request.key = FullKey(key);
  request.object = ObjectName(key);
  request.body = parts;
  request.headers["content-type"] = "application/octet-stream";
  request.payload_sha256 = options_.unsigned_payload ? kUnsignedPayload : Sha256Hex(parts);
  STASIS_TRY(Annotate(Send(request, call), "write " + request.object));
  return {};
}

Status S3Store::CheckExists(const std::string& key, uint64_t offset, const CallOptions& call) {
  Request request;
  request.method = "HEAD";
  request.key = FullKey(key);
  request.object = ObjectName(key);
  request.payload_sha256 = Sha256Hex({});
  STASIS_ASSIGN(const HttpAnswer answer, Annotate(Send(request, call), "read " + request.object));
  const auto size = ParseNumber(answer.Header("content-length"));
  if (!size || *size < offset) {
    return Fail(Code::kOutOfRange, request.object + " is shorter than the requested range");
  }
  return {};
}

Status S3Store::Get(const std::string& key, uint64_t offset, uint64_t bytes, Sink& sink,
                    const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  if (bytes > UINT64_MAX - offset) return Fail(Code::kOutOfRange, "the range is too long");
  if (bytes == 0) return CheckExists(key, offset, call);
  Download download{ObjectName(key), offset, bytes, &sink};
  Request request;
  request.method = "GET";
  request.key = FullKey(key);
  request.object = download.object;
  request.payload_sha256 = Sha256Hex({});
  download.SetRange(request);
  request.write = [&](const HttpAnswer& head, std::string_view piece) {
    return download.Write(request, head, piece);
  };
  request.check = [&](const HttpAnswer& head) -> Status {
    if (download.done == bytes) return {};
    STASIS_TRY(download.CheckHead(head));
    return Fail(Code::kUnavailable, "the server sent fewer bytes than requested");
  };
  request.rewind = [&] { return download.Rewind(request); };
  auto answer = Annotate(Send(request, call), "read " + request.object);
  const std::lock_guard lock(mutex_);
  counters_.bytes_received += download.received;
  if (!answer) return Fail(std::move(answer).error());
  return {};
}

Result<std::string> S3Store::GetWhole(const std::string& key, uint64_t max_bytes,
                                      const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  Request request;
  request.method = "GET";
  request.key = FullKey(key);
  request.object = ObjectName(key);
  request.payload_sha256 = Sha256Hex({});
  std::string data;
  auto too_long = [&] {
    return Error{Code::kOutOfRange, Domain::kStasis, 0,
                 request.object + " has more than " + std::to_string(max_bytes) + " bytes"};
  };
  request.write = [&](const HttpAnswer& head, std::string_view piece) {
    const auto length = ParseNumber(head.Header("content-length"));
    if ((length && *length > max_bytes) || data.size() + piece.size() > max_bytes) {
      request.write_error = too_long();
      return false;
    }
    data += piece;
    return true;
  };
  request.check = [&](const HttpAnswer& head) -> Status {
    const auto length = ParseNumber(head.Header("content-length"));
    if (length && *length == data.size()) return {};
    return Fail(Code::kUnavailable,
                "the server sent a different number of bytes than it announced");
  };
  request.rewind = [&]() -> Status {
    data.clear();
    return {};
  };
  STASIS_TRY(Annotate(Send(request, call), "read " + request.object));
  const std::lock_guard lock(mutex_);
  counters_.bytes_received += data.size();
  return data;
}

Result<ListPage> S3Store::List(const std::string& prefix, const std::string& start_after,
                               uint32_t limit, const CallOptions& call) {
  STASIS_TRY(CheckListing(prefix, start_after, limit));
  const std::string name = "list " + ObjectName(prefix);
  ListPage page;
  std::string last_key = start_after.empty() ? "" : FullKey(start_after);
  do {
    Request request;
    request.method = "GET";
    request.object = ObjectName(prefix);
    request.payload_sha256 = Sha256Hex({});
    request.query = {{"list-type", "2"},
                     {"encoding-type", "url"},
                     {"max-keys", std::to_string(limit - page.objects.size())},
                     {"prefix", FullKey(prefix)}};
    if (!last_key.empty()) request.query.emplace_back("start-after", last_key);
    const std::string before = last_key;
    STASIS_ASSIGN(const HttpAnswer answer, Annotate(Send(request, call), name));
    STASIS_ASSIGN(ListPage part, Annotate(ParseList(answer.body, prefix_, &last_key), name));
    page.more = part.more && last_key != before;
    std::move(part.objects.begin(), part.objects.end(), std::back_inserter(page.objects));
  } while (page.more && page.objects.empty());
  return page;
}

Status S3Store::Delete(const std::string& key, const CallOptions& call) {
  STASIS_TRY(CheckKey(key));
  Request request;
  request.method = "DELETE";
  request.key = FullKey(key);
  request.object = ObjectName(key);
  request.payload_sha256 = Sha256Hex({});
  request.absent_is_success = true;
  STASIS_TRY(Annotate(Send(request, call), "delete " + request.object));
  return {};
}

Result<uint64_t> S3Store::RemoveLeftovers(std::chrono::seconds, const CallOptions&) { return 0; }

}  // namespace stasis::objects::s3
