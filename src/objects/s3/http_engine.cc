#include "objects/s3/http_engine.h"

#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "objects/s3/ca_file.h"

namespace stasis::objects::s3 {
namespace {

// A larger receive buffer means fewer, larger pieces for the sink. With libcurl's default
// for uploads a PUT costs four times as much CPU time.
constexpr size_t kReceiveBufferBytes = 512 << 10;
constexpr long kUploadBufferBytes = 512 << 10;
constexpr size_t kMaxHeaders = 100;
constexpr size_t kMaxHeaderBytes = 16 << 10;
constexpr int kLongestPollMs = 60'000;

void InitCurl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

struct HttpEngine::Transfer {
  HttpEngine* engine = nullptr;
  const HttpRequest* request = nullptr;
  CURL* handle = nullptr;
  curl_slist* header_list = nullptr;
  char error_text[CURL_ERROR_SIZE] = {};

  // The next byte to send.
  size_t part = 0;
  size_t part_offset = 0;

  HttpAnswer answer;
  bool refused = false;   // by HttpRequest::write
  bool too_long = false;  // the body, or the headers

  std::atomic<bool> stopped = false;
  bool ended = false;  // guarded by the engine's mutex
  std::optional<Error> error;

  size_t OnBody(const char* data, size_t size);
  size_t OnHeader(std::string_view line);
  size_t OnRead(char* out, size_t size);
  bool OnSeek(curl_off_t offset);
  uint64_t BodyBytes() const;
  Error ErrorOf(int curl_code) const;
};

size_t HttpEngine::Transfer::OnBody(const char* data, size_t size) {
  if (!engine->MayMove(engine->received_, *this)) return CURL_WRITEFUNC_PAUSE;
  engine->received_.limit.Take(Deadline::Clock::now(), size);
  const bool success = answer.status >= 200 && answer.status < 300;
  if (success && request->write) {
    if (request->write(answer, {data, size})) return size;
    refused = true;
    return 0;
  }
  if (answer.body.size() + size > request->max_body_bytes) {
    too_long = true;
    return 0;
  }
  answer.body.append(data, size);
  return size;
}

size_t HttpEngine::Transfer::OnHeader(std::string_view line) {
  const size_t size = line.size();
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {  // begins an answer, perhaps after one of status 100
    answer = {};
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &answer.status);
    return size;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return size;
  if (answer.headers.size() >= kMaxHeaders || line.size() > kMaxHeaderBytes) {
    too_long = true;
    return 0;
  }
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), Lower);
  line.remove_prefix(colon + 1);
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  answer.headers[name] = line;
  return size;
}

size_t HttpEngine::Transfer::OnRead(char* out, size_t size) {
  if (!engine->MayMove(engine->sent_, *this)) return CURL_READFUNC_PAUSE;
  size = engine->sent_.limit.PieceBytes(size);
  size_t done = 0;
  while (done < size && part < request->body.size()) {
    const std::string_view rest = request->body[part].substr(part_offset);
    const size_t piece = std::min(size - done, rest.size());
    if (piece > 0) std::memcpy(out + done, rest.data(), piece);
    done += piece;
    part_offset += piece;
    if (piece == rest.size()) {
      ++part;
      part_offset = 0;
    }
  }
  engine->sent_.limit.Take(Deadline::Clock::now(), done);
  return done;
}

bool HttpEngine::Transfer::OnSeek(curl_off_t offset) {
  part = 0;
  auto left = static_cast<size_t>(offset);
  while (part < request->body.size() && left >= request->body[part].size()) {
    left -= request->body[part++].size();
  }
  part_offset = left;
  return part < request->body.size() || left == 0;
}

uint64_t HttpEngine::Transfer::BodyBytes() const {
  uint64_t bytes = 0;
  for (std::string_view each : request->body) bytes += each.size();
  return bytes;
}

Error HttpEngine::Transfer::ErrorOf(int curl_code) const {
  if (stopped) return Error{Code::kCancelled, Domain::kStasis, 0, "cancelled"};
  if (refused) return Error{Code::kAborted, Domain::kStasis, 0, "the answer was refused"};
  if (too_long) return Error{Code::kOutOfRange, Domain::kStasis, 0, "the answer is too long"};
  Error error{
      Code::kUnavailable, Domain::kStasis, curl_code,
      error_text[0] != 0 ? error_text : curl_easy_strerror(static_cast<CURLcode>(curl_code))};
  switch (curl_code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      error.code = Code::kFailedPrecondition;
      error.hint =
          "Stasis always verifies TLS; if the server's certificate is signed by an authority of "
          "your own, give its certificate as the CA file";
      break;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      error.code = Code::kInvalidArgument;
      break;
    case CURLE_OUT_OF_MEMORY:
      error.code = Code::kResourceExhausted;
      break;
    default:
      break;
  }
  return error;
}

HttpOptions HttpOptionsOf(const char* const* environment) {
  constexpr std::string_view kCertFile = "SSL_CERT_FILE=";
  HttpOptions options;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (entry.starts_with(kCertFile)) options.ssl_cert_file = entry.substr(kCertFile.size());
  }
  return options;
}

Result<std::unique_ptr<HttpEngine>> HttpEngine::Start(HttpOptions options) {
  InitCurl();
  std::unique_ptr<HttpEngine> engine(new HttpEngine(std::move(options)));
  engine->multi_ = curl_multi_init();
  if (engine->multi_ == nullptr) {
    return Fail(Code::kResourceExhausted, "out of memory for an HTTP client");
  }
  const long connections = engine->options_.connections;
  curl_multi_setopt(engine->multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS, connections);
  curl_multi_setopt(engine->multi_, CURLMOPT_MAXCONNECTS, connections);
  STASIS_ASSIGN(engine->thread_, Thread::Start([raw = engine.get()] { raw->Run(); }));
  return engine;
}

HttpEngine::~HttpEngine() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  if (multi_ == nullptr) return;
  curl_multi_wakeup(multi_);
  thread_.Join();
  for (void* handle : free_handles_) curl_easy_cleanup(handle);
  curl_multi_cleanup(multi_);
}

int HttpEngine::active() const {
  const std::lock_guard lock(mutex_);
  return active_;
}

Result<HttpAnswer> HttpEngine::Do(const HttpRequest& request) {
  if (request.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
  if (request.deadline.passed()) return Fail(Code::kDeadlineExceeded, "the deadline has passed");
  Transfer transfer;
  transfer.engine = this;
  transfer.request = &request;
  {
    const std::lock_guard lock(mutex_);
    new_transfers_.push_back(&transfer);
    ++active_;
  }
  curl_multi_wakeup(multi_);
  {
    const std::stop_callback on_stop(request.stop, [&] {
      transfer.stopped = true;
      curl_multi_wakeup(multi_);
    });
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return transfer.ended; });
    --active_;
  }
  if (transfer.error) return Fail(std::move(*transfer.error));
  return std::move(transfer.answer);
}

void HttpEngine::Run() {
  // OpenSSL writes to sockets without MSG_NOSIGNAL. If SIGPIPE is blocked, a write to a closed
  // connection only returns an error. Other threads handle the other signals.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    AddNew();
    RemoveStopped();
    Resume(sent_);
    Resume(received_);
    int running = 0;
    curl_multi_perform(multi_, &running);
    RemoveEnded();
    {
      const std::lock_guard lock(mutex_);
      if (quit_) return;
    }
    curl_multi_poll(multi_, nullptr, 0, PollTimeout(), nullptr);
  }
}

void HttpEngine::AddNew() {
  std::vector<Transfer*> added;
  {
    const std::lock_guard lock(mutex_);
    added.swap(new_transfers_);
  }
  for (Transfer* transfer : added) Begin(*transfer);
}

void HttpEngine::Begin(Transfer& transfer) {
  transfers_.push_back(&transfer);
  if (free_handles_.empty()) {
    transfer.handle = curl_easy_init();
  } else {
    transfer.handle = free_handles_.back();
    free_handles_.pop_back();
    curl_easy_reset(transfer.handle);
  }
  if (transfer.handle == nullptr) return Remove(transfer, CURLE_OUT_OF_MEMORY);
  if (Status found = SetUpCaFile(transfer); !found) {
    transfer.error = std::move(found).error();
    return Remove(transfer, CURLE_SSL_CACERT_BADFILE);
  }
  SetUp(transfer);
  curl_multi_add_handle(multi_, transfer.handle);
}

// libcurl is built without a default CA file, because the same build runs on every distribution.
Status HttpEngine::SetUpCaFile(Transfer& transfer) {
  constexpr std::string_view kHttps = "https://";
  if (!transfer.request->url.starts_with(kHttps) && !options_.proxy.starts_with(kHttps)) return {};
  STASIS_ASSIGN(const std::string path, FindCaFile(options_.ca_file, options_.ssl_cert_file));
  curl_easy_setopt(transfer.handle, CURLOPT_CAINFO, path.c_str());
  curl_easy_setopt(transfer.handle, CURLOPT_PROXY_CAINFO, path.c_str());
  return {};
}

void HttpEngine::SetUp(Transfer& transfer) {
  CURL* handle = transfer.handle;
  const HttpRequest& request = *transfer.request;
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(handle, CURLOPT_PROXY, options_.proxy.c_str());
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE,
                   static_cast<long>(received_.limit.PieceBytes(kReceiveBufferBytes)));
  curl_easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, kUploadBufferBytes);
  curl_easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(options_.connect_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(options_.stall_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_PRIVATE, &transfer);
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, transfer.error_text);

  for (const std::string& header : request.headers) {
    transfer.header_list = curl_slist_append(transfer.header_list, header.c_str());
  }
  // Waiting for "100 Continue" costs a round trip for each upload.
  transfer.header_list = curl_slist_append(transfer.header_list, "Expect:");
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, transfer.header_list);
  SetUpBody(transfer);

  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(
      handle, CURLOPT_WRITEFUNCTION, +[](char* data, size_t one, size_t size, void* user) {
        return static_cast<Transfer*>(user)->OnBody(data, one * size);
      });
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(
      handle, CURLOPT_HEADERFUNCTION, +[](char* data, size_t one, size_t size, void* user) {
        return static_cast<Transfer*>(user)->OnHeader({data, one * size});
      });
}

void HttpEngine::SetUpBody(Transfer& transfer) {
  CURL* handle = transfer.handle;
  const std::string& method = transfer.request->method;
  if (method == "HEAD") curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
  if (method == "PUT" || method == "POST") {
    curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE,
                     static_cast<curl_off_t>(transfer.BodyBytes()));
    curl_easy_setopt(handle, CURLOPT_READDATA, &transfer);
    curl_easy_setopt(
        handle, CURLOPT_READFUNCTION, +[](char* out, size_t one, size_t size, void* user) {
          return static_cast<Transfer*>(user)->OnRead(out, one * size);
        });
    // libcurl sends the body again if a kept connection turns out to be closed.
    curl_easy_setopt(handle, CURLOPT_SEEKDATA, &transfer);
    curl_easy_setopt(
        handle, CURLOPT_SEEKFUNCTION, +[](void* user, curl_off_t offset, int origin) -> int {
          const bool done = origin == SEEK_SET && static_cast<Transfer*>(user)->OnSeek(offset);
          return done ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_CANTSEEK;
        });
  }
  if (method != "GET" && method != "HEAD" && method != "PUT") {
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, method.c_str());
  }
}

bool HttpEngine::MayMove(Traffic& traffic, Transfer& transfer) {
  if (traffic.limit.Allows(Deadline::Clock::now())) return true;
  std::erase(traffic.paused, &transfer);
  traffic.paused.push_back(&transfer);
  return false;
}

void HttpEngine::Resume(Traffic& traffic) {
  // A transfer that has to pause again is appended to the list, so this loop resumes each transfer
  // at most once.
  for (size_t count = traffic.paused.size();
       count > 0 && !traffic.paused.empty() && traffic.limit.Allows(Deadline::Clock::now());
       --count) {
    Transfer* transfer = traffic.paused.front();
    traffic.paused.pop_front();
    const CURLcode code = curl_easy_pause(transfer->handle, CURLPAUSE_CONT);
    if (code != CURLE_OK) Remove(*transfer, code);
  }
}

void HttpEngine::RemoveEnded() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const int code = message->data.result;
    Transfer* transfer = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
    Remove(*transfer, code);
  }
}

void HttpEngine::RemoveStopped() {
  const std::vector<Transfer*> transfers = transfers_;
  for (Transfer* transfer : transfers) {
    if (transfer->stopped) {
      Remove(*transfer, CURLE_ABORTED_BY_CALLBACK);
    } else if (transfer->request->deadline.passed()) {
      transfer->error = Error{Code::kDeadlineExceeded, Domain::kStasis, 0,
                              "no complete answer before the deadline"};
      Remove(*transfer, CURLE_OPERATION_TIMEDOUT);
    }
  }
}

void HttpEngine::Remove(Transfer& transfer, int curl_code) {
  std::erase(transfers_, &transfer);
  std::erase(sent_.paused, &transfer);
  std::erase(received_.paused, &transfer);
  if (transfer.handle != nullptr) {
    curl_multi_remove_handle(multi_, transfer.handle);
    // libcurl must forget the buffer for error texts, because it is part of `transfer`.
    curl_easy_setopt(transfer.handle, CURLOPT_ERRORBUFFER, nullptr);
    free_handles_.push_back(transfer.handle);
  }
  curl_slist_free_all(transfer.header_list);
  if (curl_code != CURLE_OK && !transfer.error) transfer.error = transfer.ErrorOf(curl_code);
  const std::lock_guard lock(mutex_);
  transfer.ended = true;
  // Notify before the lock is released: after that, `transfer` may be destroyed.
  ended_.notify_all();
}

int HttpEngine::PollTimeout() const {
  int timeout = kLongestPollMs;
  for (const Transfer* transfer : transfers_) {
    const int left = transfer->request->deadline.PollTimeout();
    if (left >= 0) timeout = std::min(timeout, left);
  }
  for (const Traffic* traffic : {&sent_, &received_}) {
    if (traffic->paused.empty()) continue;
    const auto wait = traffic->limit.WaitAt(Deadline::Clock::now());
    timeout = static_cast<int>(std::min<int64_t>(timeout, wait.count()));
  }
  return timeout;
}

}  // namespace stasis::objects::s3
