#include "objects/s3/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stop_token>
#include <thread>

#include "base/file.h"
#include "objects/s3/credential_files.h"
#include "objects/s3/credential_services.h"

namespace stasis::objects::s3 {
namespace {

using ::testing::HasSubstr;

class CredentialsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = ::testing::TempDir() + "credentials-XXXXXX";
    ASSERT_NE(::mkdtemp(home_.data()), nullptr);
    std::filesystem::create_directory(home_ + "/.aws");
    auto engine = HttpEngine::Start({});
    ASSERT_TRUE(engine);
    engine_ = std::move(*engine);
    options_.home = home_;
    options_.environment["AWS_EC2_METADATA_DISABLED"] = "true";
  }
  void TearDown() override { (void)RemoveTree(home_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(home_ + "/.aws/" + name) << text;
  }
  Result<Credentials> Get() { return CredentialChain(options_, *engine_).Get({}); }

  std::string home_;
  std::unique_ptr<HttpEngine> engine_;
  CredentialOptions options_;
};

TEST_F(CredentialsTest, ReportsThatThereAreNone) {
  const auto found = Get();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kNotFound);
  EXPECT_THAT(found.error().hint, HasSubstr("AWS_ACCESS_KEY_ID"));
}

TEST_F(CredentialsTest, ReadsTheEnvironment) {
  options_.environment["AWS_ACCESS_KEY_ID"] = "id";
  EXPECT_FALSE(Get());
  options_.environment["AWS_SECRET_ACCESS_KEY"] = "secret";
  options_.environment["AWS_SESSION_TOKEN"] = "token";
  const auto found = Get();
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->key.key_id, "id");
  EXPECT_EQ(found->key.secret, "secret");
  EXPECT_EQ(found->key.token, "token");
  EXPECT_EQ(found->source, "the environment");
}

TEST_F(CredentialsTest, TakesOnlyItsVariables) {
  const char* environment[] = {"HOME=/h", "AWS_REGION=r=s", "PATH=/bin", "odd", nullptr};
  const CredentialOptions options = CredentialOptionsOf(environment);
  EXPECT_EQ(options.home, "/h");
  EXPECT_EQ(options.environment, (std::map<std::string, std::string>{{"AWS_REGION", "r=s"}}));
}

TEST_F(CredentialsTest, ReadsProfiles) {
  Write("credentials",
        "# comment\n[default]\naws_access_key_id = one\naws_secret_access_key=s1\r\n"
        "[ other ]\naws_access_key_id=two\naws_secret_access_key = a=b\n");
  Write("config",
        "[profile third]\ns3 =\n  nested = 1\naws_access_key_id=three\n"
        "aws_secret_access_key=s3\n[profile role]\nrole_arn=x\nsource_profile=default\n");
  EXPECT_EQ(Get()->key.key_id, "one");
  options_.environment["AWS_PROFILE"] = "other";
  EXPECT_EQ(Get()->key.secret, "a=b");
  // A chosen profile takes precedence over keys in the environment.
  options_.profile = "third";
  options_.environment["AWS_ACCESS_KEY_ID"] = "id";
  options_.environment["AWS_SECRET_ACCESS_KEY"] = "secret";
  EXPECT_EQ(Get()->key.key_id, "three");
  options_.profile = "absent";
  EXPECT_EQ(Get().error().code, Code::kNotFound);
  options_.profile = "role";
  EXPECT_EQ(Get().error().code, Code::kUnimplemented);
  EXPECT_THAT(Get().error().hint, HasSubstr("credential_process"));
}

TEST_F(CredentialsTest, RunsAProcess) {
  Write("config", R"([default]
credential_process = echo '{"Version": 1, "AccessKeyId": "p", "SecretAccessKey": "q", "SessionToken": "t", "Expiration": "2100-01-01T00:00:00Z"}'
)");
  const auto found = Get();
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->key.key_id, "p");
  EXPECT_EQ(found->key.token, "t");
  EXPECT_EQ(found->expires, 4102444800);
  for (const char* command :
       {"exit 3", "echo no json", "echo '{}'", "head -c 100000 /dev/zero",
        R"(echo '{"AccessKeyId": "p", "SecretAccessKey": "q", "Expiration": "soon"}')"}) {
    EXPECT_FALSE(FromProcess(command, {})) << command;
  }
  const CallOptions call{Deadline::In(std::chrono::milliseconds(50)), {}};
  EXPECT_EQ(FromProcess("exec sleep 600", call).error().code, Code::kDeadlineExceeded);
}

// Credentials must not appear in messages, and no started process may remain.
TEST_F(CredentialsTest, EndsAProcessWithItsChildren) {
  const std::string pid_file = home_ + "/pid";
  std::stop_source stop;
  std::thread stopper([&] {
    while (!ReadFile(pid_file).value_or("").ends_with('\n')) ::usleep(10'000);
    stop.request_stop();
  });
  const auto stopped =
      FromProcess("sleep 1000 & echo $! > " + pid_file + "; wait", {Deadline(), stop.get_token()});
  stopper.join();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::kCancelled);
  const std::string pid = *ReadFile(pid_file);
  const auto is_running = [&] {
    const auto stat = ReadFile("/proc/" + pid.substr(0, pid.size() - 1) + "/stat");
    return stat && stat->find(") Z") == stat->npos;
  };
  // SIGKILL was sent to the group, but the kernel may need a moment to end the processes.
  const auto gone = Deadline::In(std::chrono::seconds(20));
  while (is_running() && !gone.passed()) ::usleep(10'000);
  EXPECT_FALSE(is_running());

  const Error error =
      FromProcess("echo a-secret; echo no access >&2; exit 3 # password", {}).error();
  EXPECT_THAT(error.message, HasSubstr("credential_process exited with code 3: no access"));
  EXPECT_THAT(error.ToString() + error.hint, ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(error.ToString() + error.hint, ::testing::Not(HasSubstr("password")));
}

// A background process of the command keeps the pipe open after the command has ended. It must not
// delay the credentials.
TEST_F(CredentialsTest, DoesNotWaitForAProcessThatACommandLeaves) {
  const CallOptions call{Deadline::In(std::chrono::seconds(15)), {}};
  EXPECT_TRUE(
      FromProcess(R"(sleep 20 & echo '{"AccessKeyId": "p", "SecretAccessKey": "q"}')", call));
}

TEST_F(CredentialsTest, RefusesExpiredOnes) {
  Write("config", R"([default]
credential_process = echo '{"AccessKeyId": "p", "SecretAccessKey": "q", "Expiration": "2020-01-01T00:00:00Z"}'
)");
  EXPECT_EQ(Get().error().code, Code::kPermissionDenied);
}

TEST_F(CredentialsTest, KeepsWhatItFoundUntilItIsDiscarded) {
  const std::string counter = home_ + "/count";
  Write("config", "[default]\ncredential_process = echo x >> " + counter +
                      R"(; echo '{"AccessKeyId": "p", "SecretAccessKey": "q"}'
)");
  CredentialChain chain(options_, *engine_);
  ASSERT_TRUE(chain.Get({}));
  const auto found = chain.Get({});
  ASSERT_TRUE(found);
  EXPECT_EQ(*ReadFile(counter), "x\n");
  chain.Discard(*found);
  ASSERT_TRUE(chain.Get({}));
  EXPECT_EQ(*ReadFile(counter), "x\nx\n");
}

TEST_F(CredentialsTest, RefusesTextThatWouldEndAHeader) {
  options_.environment["AWS_ACCESS_KEY_ID"] = "id";
  options_.environment["AWS_SECRET_ACCESS_KEY"] = "secret";
  for (const std::string& token : {std::string("a\r\nx-header: b"), std::string(20'000, 'x')}) {
    options_.environment["AWS_SESSION_TOKEN"] = token;
    const auto found = Get();
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Code::kInvalidArgument);
    EXPECT_THAT(found.error().message, HasSubstr("from the environment cannot be used"));
  }
}

TEST_F(CredentialsTest, SendsTokensToKnownHostsOnly) {
  options_.environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/credentials";
  EXPECT_EQ(Get().error().code, Code::kInvalidArgument);
  options_.environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://localhost@example.com/";
  EXPECT_EQ(Get().error().code, Code::kInvalidArgument);
}

TEST(StsAnswer, NeedsATimeOfExpiry) {
  HttpAnswer answer;
  answer.status = 200;
  const std::string begin =
      "<r><AssumeRoleWithWebIdentityResult><Credentials>"
      "<AccessKeyId>i</AccessKeyId><SecretAccessKey>s</SecretAccessKey>";
  const std::string end = "</Credentials></AssumeRoleWithWebIdentityResult></r>";
  answer.body = begin + "<Expiration>1970-01-01T00:01:00Z</Expiration>" + end;
  const auto found = ParseStsAnswer(answer, "STS");
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->expires, 60);
  answer.body = begin + "<Expiration>soon</Expiration>" + end;
  EXPECT_FALSE(ParseStsAnswer(answer, "STS"));
}

TEST(CredentialTime, IsParsed) {
  EXPECT_EQ(ParseTime("1970-01-01T00:01:00Z"), 60);
  EXPECT_EQ(ParseTime("1970-01-01T00:01:00.123Z"), 60);
  EXPECT_EQ(ParseTime("1970-01-01T00:01:00+00:00"), 60);
  EXPECT_EQ(ParseTime("1970-01-01T00:01:00+02:00"), std::nullopt);
  EXPECT_EQ(ParseTime("tomorrow"), std::nullopt);
}

}  // namespace
}  // namespace stasis::objects::s3
