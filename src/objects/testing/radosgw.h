// A radosgw of Ceph with the bucket `bucket`, for tests. STASIS_TESTS_DIR must be defined.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "objects/s3/s3_store.h"
#include "objects/s3/sigv4.h"
#include "objects/testing/server_process.h"

namespace stasis::objects::testing {

class Radosgw {
 public:
  // `place` says where the objects are: "memory" or "disk".
  explicit Radosgw(const std::string& place) {
    if (::mkdtemp(folder_.data()) == nullptr) return;
    server_ = ServerProcess::Start({STASIS_TESTS_DIR "/objects/radosgw.sh", folder_, place});
    if (server_ && !MakeBucket()) server_.reset();
  }
  ~Radosgw() {
    server_.reset();
    (void)RemoveTree(folder_);
  }
  Radosgw(const Radosgw&) = delete;

  bool runs() const { return server_ != nullptr; }
  s3::S3Options Options() const {
    s3::S3Options options;
    options.endpoint = server_->Url();
    options.region = "default";
    options.credentials.environment = {{"AWS_ACCESS_KEY_ID", "AKIDTEST"},
                                       {"AWS_SECRET_ACCESS_KEY", "secret"}};
    return options;
  }
  // Kills radosgw by SIGKILL. Its monitor and OSD continue.
  void Kill() const {
    const auto pid = ReadFile(folder_ + "/run/radosgw");
    ASSERT_TRUE(pid && std::atoi(pid->c_str()) > 1);
    EXPECT_EQ(::kill(std::atoi(pid->c_str()), SIGKILL), 0);
  }
  // Starts radosgw again after Kill().
  void Restart() const { ASSERT_TRUE(server_->Restart()); }

 private:
  bool MakeBucket() const {
    auto engine = s3::HttpEngine::Start({});
    if (!engine) return false;
    const s3::RequestToSign request{"PUT",     "127.0.0.1:" + std::to_string(server_->port()),
                                    "/bucket", {},
                                    {},        s3::Sha256Hex({})};
    const auto signed_request =
        s3::Sign({"AKIDTEST", "secret", ""}, "default", request, NowMs() / 1000);
    s3::HttpRequest http;
    http.method = "PUT";
    http.url = server_->Url() + signed_request.target;
    http.headers = signed_request.headers;
    const auto answer = (*engine)->Do(http);
    EXPECT_TRUE(answer && answer->status == 200) << (answer ? answer->body : "no answer");
    return answer && answer->status == 200;
  }

  std::string folder_ = "/tmp/objects-radosgw-XXXXXX";
  std::shared_ptr<ServerProcess> server_;
};

}  // namespace stasis::objects::testing
