#include "api/metrics_exporter.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "api/http_request.h"

namespace stasis::api {
namespace {

using ::testing::HasSubstr;

TEST(HttpRequestTest, OnlyGetMetricsIsServed) {
  const std::string rest = " HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(ParseHttpRequest("GET /metrics" + rest), HttpRequest::kMetrics);
  EXPECT_EQ(ParseHttpRequest("GET /metrics?name[]=x" + rest), HttpRequest::kMetrics);
  EXPECT_EQ(ParseHttpRequest("GET /metrics HTTP/1.0\n\n"), HttpRequest::kMetrics);
  EXPECT_EQ(ParseHttpRequest("GET /" + rest), HttpRequest::kUnknownPath);
  EXPECT_EQ(ParseHttpRequest("GET /metrics/../x" + rest), HttpRequest::kUnknownPath);
  EXPECT_EQ(ParseHttpRequest("POST /metrics" + rest), HttpRequest::kOtherMethod);
  for (const char* line : {"GET", "GET /metrics", "GET  HTTP/2", "", "\xff\xff \x01"}) {
    EXPECT_EQ(ParseHttpRequest(std::string(line) + "\r\n\r\n"), HttpRequest::kMalformed) << line;
  }
  EXPECT_EQ(ParseHttpRequest("GET /metrics HTTP/1.1\r\nHost: x\r\n"), HttpRequest::kIncomplete);
  EXPECT_EQ(ParseHttpRequest(std::string(kMaxRequestBytes, 'x')), HttpRequest::kMalformed);
}

class Port : public ::testing::Test {
 protected:
  // One exporter serves all of these tests, because an exporter runs until the process ends.
  static void SetUpTestSuite() {
    auto started = MetricsExporter::Start("127.0.0.1:0", [] { return std::string(8 << 20, 'm'); });
    ASSERT_TRUE(started) << started.error().ToString();
    exporter_ = started->release();
  }
  static int Connect() {
    const std::string& address = exporter_->address();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    to.sin_port =
        ::htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return fd;
  }
  static std::string ReadAll(int fd) {
    std::string text;
    char bytes[65536];
    for (ssize_t got; (got = ::read(fd, bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<size_t>(got));
    }
    ::close(fd);
    return text;
  }
  static std::string Ask(const std::string& request) {
    const int fd = Connect();
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return ReadAll(fd);
  }
  static bool IsClosed(int fd, int timeout_ms) {
    pollfd p{fd, POLLIN, 0};
    char byte;
    return ::poll(&p, 1, timeout_ms) == 1 && ::read(fd, &byte, 1) <= 0;
  }
  static MetricsExporter* exporter_;
};
MetricsExporter* Port::exporter_ = nullptr;

TEST_F(Port, AnswersAndCloses) {
  const std::string answer = Ask("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer.substr(0, 200), HasSubstr("200 OK"));
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, size_t{8} << 20);
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), HasSubstr("404"));
  EXPECT_THAT(Ask("\x16\x03\x01\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(Ask(std::string(kMaxRequestBytes, 'x')), HasSubstr("400"));
}

TEST_F(Port, IdleConnectionsDoNotBlockAScraper) {
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(Connect());
  // These connections send a request and do not read the answer.
  for (int i = 0; i < 8; ++i) {
    silent.push_back(Connect());
    (void)!::write(silent.back(), "GET /metrics HTTP/1.1\r\n\r\n", 25);
  }
  EXPECT_THAT(Ask("GET /metrics HTTP/1.1\r\n\r\n").substr(0, 200), HasSubstr("200 OK"));
  EXPECT_TRUE(IsClosed(silent[0], 10000));
  for (int fd : silent) ::close(fd);
}

TEST_F(Port, APortInUseIsNamedInTheError) {
  auto second = MetricsExporter::Start(exporter_->address(), [] { return std::string(); });
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().ToString(), HasSubstr("metrics.listen " + exporter_->address()));
}

}  // namespace
}  // namespace stasis::api
