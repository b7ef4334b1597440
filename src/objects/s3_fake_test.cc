// Tests S3Store with a strict fake server, which can also make requests fail.
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "objects/s3/s3_store.h"
#include "objects/testing/conformance.h"
#include "objects/testing/server_process.h"

namespace stasis::objects::testing {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<ServerProcess> StartFake(std::vector<std::string> arguments = {}) {
  std::vector<std::string> argv = {"/usr/bin/python3", STASIS_TESTS_DIR "/objects/fake_s3.py"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return ServerProcess::Start(argv);
}

s3::S3Options OptionsFor(const std::string& endpoint) {
  s3::S3Options options;
  options.endpoint = endpoint;
  options.region = "test-1";
  options.credentials.environment = {{"AWS_ACCESS_KEY_ID", "AKIDTEST"},
                                     {"AWS_SECRET_ACCESS_KEY", "secret"}};
  options.first_retry_delay = std::chrono::milliseconds(1);
  options.max_retry_delay = std::chrono::milliseconds(10);
  return options;
}

std::shared_ptr<ObjectStore> OpenStore(const s3::S3Options& options,
                                       const std::string& prefix = "pre/fix") {
  auto store = s3::S3Store::Open("bucket", prefix, options);
  EXPECT_TRUE(store) << store.error().ToString();
  return store ? std::shared_ptr<ObjectStore>(std::move(*store)) : nullptr;
}

// All tests of a process share one server; each has a prefix of its own.
const std::shared_ptr<ServerProcess>& SharedFake() {
  static const auto server = StartFake();
  return server;
}

std::string FreshPrefix() {
  static int count = 0;
  return "test-" + std::to_string(++count) + "/images";
}

StoreUnderTest OpenPathStyle() {
  if (!SharedFake()) return {};
  return {SharedFake(), OpenStore(OptionsFor(SharedFake()->Url()), FreshPrefix())};
}

StoreUnderTest OpenHostStyle() {
  if (!SharedFake()) return {};
  // glibc and libcurl resolve every name below "localhost" to this host.
  s3::S3Options options = OptionsFor(SharedFake()->Url("localhost"));
  options.path_style = false;
  options.unsigned_payload = true;
  return {SharedFake(), OpenStore(options, FreshPrefix())};
}

INSTANTIATE_TEST_SUITE_P(FakeS3, ObjectStoreTest,
                         ::testing::Values(StoreKind{"path_style", OpenPathStyle},
                                           StoreKind{"host_style", OpenHostStyle}),
                         [](const auto& info) { return info.param.name; });

class S3FaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SharedFake());
    auto engine = s3::HttpEngine::Start({});
    ASSERT_TRUE(engine);
    engine_ = std::move(*engine);
    store_ = OpenStore(OptionsFor(SharedFake()->Url()), FreshPrefix());
  }
  void TearDown() override { SetFaults("[]"); }
  void SetFaults(const std::string& json) {
    const std::string_view body = json;
    s3::HttpRequest request;
    request.method = "PUT";
    request.url = SharedFake()->Url() + "/_faults";
    request.body = {&body, 1};
    ASSERT_TRUE(engine_->Do(request));
  }
  // Returns method, target, status and the client's port of each request since SetFaults().
  nlohmann::json Log() {
    s3::HttpRequest request;
    request.method = "GET";
    request.url = SharedFake()->Url() + "/_log";
    const auto answer = engine_->Do(request);
    return nlohmann::json::parse(answer ? answer->body : "[]");
  }
  std::vector<int> Statuses() {
    std::vector<int> statuses;
    for (const auto& entry : Log()) statuses.push_back(entry[2].get<int>());
    return statuses;
  }
  // Puts an object with any key on the server, even one that the stores reject.
  void SetObject(const std::string& key) {
    const std::string body = nlohmann::json(key).dump();
    const std::string_view part = body;
    s3::HttpRequest request;
    request.method = "PUT";
    request.url = SharedFake()->Url() + "/_object";
    request.body = {&part, 1};
    ASSERT_TRUE(engine_->Do(request));
  }
  void Open(const s3::S3Options& options) { store_ = OpenStore(options, FreshPrefix()); }

  std::unique_ptr<s3::HttpEngine> engine_;
  std::shared_ptr<ObjectStore> store_;
};

std::string Fault(const std::string& method, const std::string& rest, int count = 1) {
  return R"([{"method": ")" + method + R"(", "target": "", "count": )" + std::to_string(count) +
         ", " + rest + "}]";
}

TEST_F(S3FaultTest, RetriesWhatMayPass) {
  const std::string data = Pattern(50'000);
  for (const char* fault :
       {R"("kind": "refuse")", R"("kind": "status", "status": 500, "code": "InternalError")",
        R"("kind": "status", "status": 503, "code": "SlowDown")",
        R"("kind": "status", "status": 429, "code": "TooManyRequests")",
        R"("kind": "status", "status": 400, "code": "RequestTimeout")",
        R"("kind": "status", "status": 400, "code": "XAmzContentSHA256Mismatch")",
        R"("kind": "status", "status": 409, "code": "OperationAborted")"}) {
    SetFaults(Fault("PUT", fault, 2));
    EXPECT_SUCCESS(PutText(*store_, "key", data));
    for (const char* method : {"GET", "DELETE"}) {
      SetFaults(Fault(method, fault, 2));
      CollectingSink sink;
      EXPECT_SUCCESS(store_->Get("key", 0, data.size(), sink));
      EXPECT_EQ(sink.data == data, true) << fault;
      EXPECT_SUCCESS(store_->List("", "", 10));
      EXPECT_SUCCESS(store_->Delete("absent"));
    }
  }
  EXPECT_GE(store_->counters().retries, 36u);  // libcurl itself repeats some requests
}

TEST_F(S3FaultTest, ContinuesABrokenRangeAtAUnit) {
  const std::string data = Pattern(1'000'000);
  EXPECT_SUCCESS(PutText(*store_, "key", data));
  for (const char* fault :
       {R"("kind": "cut", "bytes": 250000)", R"("kind": "short", "bytes": 7)"}) {
    SetFaults(Fault("GET", fault, 2));
    CollectingSink sink(4096);
    EXPECT_SUCCESS(store_->Get("key", 1000, 900'000, sink));
    EXPECT_TRUE(sink.data == data.substr(1000, 900'000)) << fault;
    EXPECT_EQ(sink.rewinds, 2) << fault;
    EXPECT_THAT(Statuses(), ElementsAre(206, 206, 206));
  }
  // GetWhole() begins again after an interrupted transfer.
  SetFaults(Fault("GET", R"("kind": "cut", "bytes": 250000)"));
  EXPECT_TRUE(*store_->GetWhole("key", 1'000'000) == data);
  EXPECT_THAT(Statuses(), ElementsAre(200, 200));
}

TEST_F(S3FaultTest, RetriesAnotherRange) {
  EXPECT_SUCCESS(PutText(*store_, "key", "0123456789"));
  SetFaults(Fault("GET", R"("kind": "range")"));
  CollectingSink sink;
  EXPECT_SUCCESS(store_->Get("key", 2, 5, sink));
  EXPECT_EQ(sink.data, "23456");
}

// A sink that replaces the object when the first transfer breaks off.
class ReplacingSink : public CollectingSink {
 public:
  explicit ReplacingSink(ObjectStore& store) : store_(store) {}
  uint64_t Rewind() override {
    EXPECT_SUCCESS(PutText(store_, "key", std::string(1'000'000, 'x')));
    return CollectingSink::Rewind();
  }

 private:
  ObjectStore& store_;
};

TEST_F(S3FaultTest, DoesNotMixTwoObjects) {
  EXPECT_SUCCESS(PutText(*store_, "key", Pattern(1'000'000)));
  SetFaults(Fault("GET", R"("kind": "cut", "bytes": 250000)"));
  ReplacingSink sink(*store_);
  EXPECT_CODE(store_->Get("key", 0, 1'000'000, sink), Code::kAborted);
}

TEST_F(S3FaultTest, GivesUpAfterItsAttempts) {
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.max_attempts = 3;
  Open(options);
  SetFaults(Fault("PUT", R"("kind": "status", "status": 500, "code": "InternalError")", 100));
  const Status put = PutText(*store_, "key", "data");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kUnavailable);
  EXPECT_THAT(put.error().ToString(), HasSubstr("gave up after 3 attempts"));
  EXPECT_THAT(put.error().ToString(), HasSubstr("InternalError"));
  EXPECT_THAT(Statuses(), ElementsAre(500, 500, 500));
}

TEST_F(S3FaultTest, DoesNotWaitBeyondTheDeadline) {
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.first_retry_delay = options.max_retry_delay = std::chrono::hours(1);
  Open(options);
  SetFaults(Fault("PUT", R"("kind": "status", "status": 500, "code": "InternalError")", 100));
  const std::string_view text = "data";
  const CallOptions call{Deadline::In(std::chrono::minutes(1)), {}};
  const Status put = store_->Put("key", {&text, 1}, call);
  ASSERT_FALSE(put);
  EXPECT_FALSE(call.deadline.passed());
  EXPECT_THAT(put.error().ToString(), HasSubstr("gave up after 1 attempts"));
}

TEST_F(S3FaultTest, StopsAWaitForARetry) {
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.first_retry_delay = options.max_retry_delay = std::chrono::hours(1);
  Open(options);
  SetFaults(Fault("PUT", R"("kind": "status", "status": 500, "code": "InternalError")", 100));
  std::stop_source stop;
  auto thread = Thread::Start([&] {
    const std::string_view text = "data";
    EXPECT_CODE(store_->Put("key", {&text, 1}, {{}, stop.get_token()}), Code::kCancelled);
  });
  ASSERT_TRUE(thread);
  stop.request_stop();
}

struct RefusalRow {
  const char* fault;
  Code code;
  const char* message;
};

TEST_F(S3FaultTest, ExplainsARefusalAtOnce) {
  for (const RefusalRow& row :
       {RefusalRow{R"("kind": "status", "status": 403, "code": "AccessDenied")",
                   Code::kPermissionDenied, "AKIDTEST may not do this"},
        RefusalRow{R"("kind": "status", "status": 403, "code": "RequestTimeTooSkewed")",
                   Code::kFailedPrecondition, "the clock of this machine is"},
        RefusalRow{R"("kind": "status", "status": 301, "code": "PermanentRedirect",
                      "headers": {"x-amz-bucket-region": "eu-west-1",
                                  "Location": "http://127.0.0.1:1/"})",
                   Code::kFailedPrecondition, "bucket bucket is in region eu-west-1, not test-1"},
        RefusalRow{R"("kind": "status", "status": 404, "code": "NoSuchBucket")", Code::kNotFound,
                   "there is no bucket bucket"}}) {
    SetFaults(Fault("PUT", row.fault, 100));
    const Status put = PutText(*store_, "key", "data");
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, row.code) << row.fault;
    EXPECT_THAT(put.error().ToString(), HasSubstr(row.message));
    EXPECT_FALSE(put.error().hint.empty()) << row.fault;
    EXPECT_EQ(Statuses().size(), 1u) << row.fault;
  }
}

TEST_F(S3FaultTest, ExplainsWrongCredentials) {
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.credentials.environment["AWS_SECRET_ACCESS_KEY"] = "wrong";
  Open(options);
  EXPECT_THAT(PutText(*store_, "key", "data").error().ToString(),
              HasSubstr("the server refuses the signature of key AKIDTEST"));
  options.credentials.environment["AWS_ACCESS_KEY_ID"] = "AKIDOTHER";
  Open(options);
  EXPECT_THAT(PutText(*store_, "key", "data").error().ToString(),
              HasSubstr("does not know the access key AKIDOTHER"));
  options = OptionsFor(SharedFake()->Url());
  options.region = "mars-1";
  Open(options);
  EXPECT_THAT(PutText(*store_, "key", "data").error().ToString(),
              HasSubstr("bucket bucket is in region test-1, not mars-1"));
}

TEST_F(S3FaultTest, RefreshesExpiredCredentialsOnce) {
  SetFaults(Fault("PUT", R"("kind": "token")"));
  EXPECT_SUCCESS(PutText(*store_, "key", "data"));
  SetFaults(Fault("PUT", R"("kind": "token")", 100));
  const Status put = PutText(*store_, "key", "data");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kPermissionDenied);
  EXPECT_THAT(put.error().ToString(), HasSubstr("from the environment have expired"));
  EXPECT_EQ(Statuses().size(), 2u);
}

TEST_F(S3FaultTest, SendsTheSessionToken) {
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.credentials.environment["AWS_ACCESS_KEY_ID"] = "ASIATEST";
  options.credentials.environment["AWS_SESSION_TOKEN"] = "token";
  Open(options);
  EXPECT_SUCCESS(PutText(*store_, "key", "data"));
}

TEST_F(S3FaultTest, ListsAmongForeignObjects) {
  EXPECT_SUCCESS(PutText(*store_, "a", "1"));
  EXPECT_SUCCESS(PutText(*store_, "b", "2"));
  const std::string prefix = store_->Name().substr(std::string("s3://bucket/").size());
  for (const std::string& key :
       {prefix + "/", prefix + "/a b", prefix + "/a//b", prefix + "/a&<\x01"}) {
    SetObject(key);
  }
  const auto page = store_->List("", "", 10);
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_THAT(Keys(*page), ElementsAre("a", "b"));
  // A page that has only objects with invalid keys is skipped.
  const auto second = store_->List("", "a", 1);
  ASSERT_TRUE(second);
  EXPECT_THAT(Keys(*second), ElementsAre("b"));
}

TEST_F(S3FaultTest, KeepsConnections) {
  EXPECT_SUCCESS(PutText(*store_, "key", "data"));
  SetFaults("[]");
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store_->GetWhole("key", 10));
  std::set<int> ports;
  for (const auto& entry : Log()) ports.insert(entry[3].get<int>());
  EXPECT_EQ(ports.size(), 1u);
}

// Calls `body` with 0 to `count` - 1, each on a thread.
void OnThreads(int count, const std::function<void(int)>& body) {
  std::vector<Thread> threads;
  for (int i = 0; i < count; ++i) {
    auto thread = Thread::Start([&body, i] { body(i); });
    ASSERT_TRUE(thread);
    threads.push_back(std::move(*thread));
  }
}

TEST_F(S3FaultTest, SharesItsConnections) {
  EXPECT_SUCCESS(PutText(*store_, "key", Pattern(100'000)));
  SetFaults("[]");
  OnThreads(40, [&](int) {
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(store_->GetWhole("key", 100'000));
  });
  std::set<int> ports;
  for (const auto& entry : Log()) ports.insert(entry[3].get<int>());
  EXPECT_GE(ports.size(), 2u);  // each engine has its own connections
  EXPECT_LE(ports.size(), 16u);
}

// The rate of all transfers together is bounded, even if each transfer is short.
TEST_F(S3FaultTest, BoundsItsBandwidth) {
  constexpr size_t kBytes = 40'000;
  constexpr int kThreads = 4;
  constexpr int kObjectsOfAThread = 10;
  const std::string data = Pattern(kBytes);
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.http.max_bytes_per_second = 1'000'000;
  Open(options);
  // Thread N works on the objects N/0, N/1 and so on.
  auto on_all_objects = [&](const std::function<void(const std::string&)>& body) {
    OnThreads(kThreads, [&](int thread) {
      for (int i = 0; i < kObjectsOfAThread; ++i) {
        body(std::to_string(thread) + "/" + std::to_string(i));
      }
    });
  };
  const Stopwatch sending;
  on_all_objects([&](const std::string& key) { EXPECT_SUCCESS(PutText(*store_, key, data)); });
  EXPECT_GE(sending.Seconds(), 1.4);
  const Stopwatch receiving;
  on_all_objects([&](const std::string& key) {
    EXPECT_TRUE(store_->GetWhole(key, kBytes).value_or("") == data) << key;
  });
  EXPECT_GE(receiving.Seconds(), 1.4);
  EXPECT_LE(receiving.Seconds(), 30);
}

TEST_F(S3FaultTest, BoundsTheBandwidthOfOneObject) {
  const std::string data = Pattern(1'500'000);
  s3::S3Options options = OptionsFor(SharedFake()->Url());
  options.http.max_bytes_per_second = 1'000'000;
  Open(options);
  const Stopwatch sending;
  EXPECT_SUCCESS(PutText(*store_, "key", data));
  EXPECT_GE(sending.Seconds(), 1.2);
  const Stopwatch receiving;
  EXPECT_TRUE(store_->GetWhole("key", data.size()).value_or("") == data);
  EXPECT_GE(receiving.Seconds(), 1.2);
}

class S3TlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "objects-tls-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    SpawnOptions make;
    make.argv = {"/usr/bin/openssl",
                 "req",
                 "-x509",
                 "-newkey",
                 "ec",
                 "-pkeyopt",
                 "ec_paramgen_curve:P-256",
                 "-nodes",
                 "-days",
                 "2",
                 "-subj",
                 "/CN=localhost",
                 "-addext",
                 "subjectAltName=DNS:localhost",
                 "-keyout",
                 folder_ + "/key.pem",
                 "-out",
                 folder_ + "/ca.pem"};
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    make.fds[2] = null;
    auto child = Subprocess::Spawn(make);
    ::close(null);
    ASSERT_TRUE(child);
    ASSERT_EQ(*child->Wait(), 0);
    server_ = StartFake({"--tls", folder_ + "/ca.pem", folder_ + "/key.pem"});
    ASSERT_TRUE(server_);
  }
  void TearDown() override { (void)RemoveTree(folder_); }

  std::string folder_;
  std::shared_ptr<ServerProcess> server_;
};

TEST_F(S3TlsTest, VerifiesTheServer) {
  s3::S3Options options = OptionsFor(server_->Url("localhost", "https"));
  options.http.ca_file = folder_ + "/ca.pem";
  EXPECT_SUCCESS(PutText(*OpenStore(options), "key", "data"));

  const auto unknown_ca = OpenStore(OptionsFor(server_->Url("localhost", "https")));
  const Status put = PutText(*unknown_ca, "key", "data");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kFailedPrecondition) << put.error().ToString();
  EXPECT_THAT(put.error().hint, HasSubstr("CA file"));
  EXPECT_EQ(unknown_ca->counters().retries, 0u);

  s3::S3Options of_user = OptionsFor(server_->Url("localhost", "https"));
  of_user.http.ssl_cert_file = folder_ + "/ca.pem";
  EXPECT_SUCCESS(PutText(*OpenStore(of_user), "key", "data"));

  options.endpoint = server_->Url("127.0.0.1", "https");
  const Status wrong_name = PutText(*OpenStore(options), "key", "data");
  ASSERT_FALSE(wrong_name);
  EXPECT_EQ(wrong_name.error().code, Code::kFailedPrecondition) << wrong_name.error().ToString();
}

TEST(S3Endpoint, ThatIsNotThereIsNamed) {
  s3::S3Options options = OptionsFor("http://127.0.0.1:1");
  options.max_attempts = 2;
  const Status put = PutText(*OpenStore(options), "key", "data");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kUnavailable);
  EXPECT_THAT(put.error().ToString(), HasSubstr("127.0.0.1"));
}

}  // namespace
}  // namespace stasis::objects::testing
