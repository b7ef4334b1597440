// Carries out many HTTP requests at a time on one thread, over persistent connections. Bodies go
// straight from and to the caller's memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "base/thread.h"
#include "objects/s3/rate_limit.h"

namespace stasis::objects::s3 {

struct HttpOptions {
  std::string ca_file;        // in place of the certificates of the user and of the system
  std::string ssl_cert_file;  // the user's SSL_CERT_FILE, in place of the system's certificates
  std::string proxy;          // no proxy if empty: the environment is ignored
  // Limits the rate of the bodies of all requests together, separately in each direction. 0: no
  // limit.
  uint64_t max_bytes_per_second = 0;
  int connections = 16;  // further requests wait
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::seconds stall_timeout{30};  // a request fails if no byte moves for this long
};

// Takes SSL_CERT_FILE from a list of NAME=VALUE that ends with nullptr.
HttpOptions HttpOptionsOf(const char* const* environment);

struct HttpAnswer {
  long status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // empty if it was given to HttpRequest::write

  // Returns a header's value, or an empty string.
  std::string Header(const char* name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string url;
  std::vector<std::string> headers;        // "name: value"
  std::span<const std::string_view> body;  // of a PUT or POST; unchanged until Do() returns
  // If set, takes the body of an answer with a status of 2xx, piece by piece, on the engine's
  // thread. Returning false ends the request. The body of other answers goes to HttpAnswer::body.
  std::function<bool(const HttpAnswer& head, std::string_view piece)> write;
  uint64_t max_body_bytes = 4u << 20;  // of HttpAnswer::body; a longer body is an error
  Deadline deadline;
  std::stop_token stop;
};

class HttpEngine {
 public:
  static Result<std::unique_ptr<HttpEngine>> Start(HttpOptions options);
  // No call may be in progress.
  ~HttpEngine();
  HttpEngine(const HttpEngine&) = delete;

  // Blocks until the whole answer, of any status, has arrived. Follows no redirects. Errors:
  // - kDeadlineExceeded, kCancelled: the limits in the request
  // - kUnavailable: the connection failed, broke or stalled; the request may be repeated
  // - kFailedPrecondition: TLS could not be verified, or there is no CA file for it
  // - kOutOfRange: the body is longer than max_body_bytes
  // - kAborted: `write` returned false
  // - kInvalidArgument: the URL cannot be used
  // Safe to call from any thread.
  Result<HttpAnswer> Do(const HttpRequest& request);

  // Returns the number of requests in progress, to distribute requests over engines.
  int active() const;

 private:
  struct Transfer;

  // The state of all uploads, or of all downloads. Used only by the engine's thread.
  struct Traffic {
    RateLimit limit;
    std::deque<Transfer*> paused;  // by the limit, in the order of their turns
  };

  explicit HttpEngine(HttpOptions options)
      : options_(std::move(options)),
        sent_{RateLimit(options_.max_bytes_per_second), {}},
        received_{RateLimit(options_.max_bytes_per_second), {}} {}
  void Run();
  void AddNew();
  void Begin(Transfer& transfer);
  void RemoveEnded();
  void RemoveStopped();
  void Remove(Transfer& transfer, int curl_code);
  // Returns false, and lists the transfer as paused, if the limit does not allow a piece now.
  static bool MayMove(Traffic& traffic, Transfer& transfer);
  void Resume(Traffic& traffic);
  Status SetUpCaFile(Transfer& transfer);
  void SetUp(Transfer& transfer);
  void SetUpBody(Transfer& transfer);
  int PollTimeout() const;

  const HttpOptions options_;
  void* multi_ = nullptr;             // CURLM
  std::vector<void*> free_handles_;   // CURL, of the engine's thread
  std::vector<Transfer*> transfers_;  // of the engine's thread
  Traffic sent_;
  Traffic received_;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Transfer*> new_transfers_;
  int active_ = 0;
  bool quit_ = false;
  Thread thread_;
};

}  // namespace stasis::objects::s3
