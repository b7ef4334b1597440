#include "device/cuda/helper_protocol.h"

#include <gtest/gtest.h>

namespace stasis::device::cuda::wire {
namespace {

Request ValidRequest(Op op) {
  Request request;
  request.id = 1;
  request.op = op;
  request.pid = op <= Op::kGpus || op >= Op::kEnd ? 0 : 4711;
  return request;
}

Reply ValidReply() {
  Reply reply;
  reply.id = 1;
  return reply;
}

TEST(HelperProtocolTest, EveryOperationHasAValidRequest) {
  for (uint32_t op = 1; op <= static_cast<uint32_t>(Op::kLast); ++op) {
    EXPECT_EQ(WhyInvalid(ValidRequest(static_cast<Op>(op)), sizeof(Request)), nullptr) << op;
  }
  EXPECT_EQ(WhyInvalid(ValidReply(), sizeof(Reply)), nullptr);
}

TEST(HelperProtocolTest, EachFieldOfARequestIsChecked) {
  struct Case {
    const char* what;
    Op op;
    void (*spoil)(Request&);
  };
  const Case cases[] = {
      {"magic", Op::kLock, [](Request& r) { r.magic = 0; }},
      {"version", Op::kLock, [](Request& r) { r.version = kVersion + 1; }},
      {"id", Op::kLock, [](Request& r) { r.id = 0; }},
      {"op 0", Op::kLock, [](Request& r) { r.op = static_cast<Op>(0); }},
      {"op 11", Op::kLock, [](Request& r) { r.op = static_cast<Op>(11); }},
      {"no pid", Op::kLock, [](Request& r) { r.pid = 0; }},
      {"negative pid", Op::kGpus, [](Request& r) { r.pid = -1; }},
      {"hello with pid", Op::kHello, [](Request& r) { r.pid = 1; }},
      {"long timeout", Op::kLock, [](Request& r) { r.timeout_ms = kMaxTimeoutMs + 1; }},
      {"timeout of a checkpoint", Op::kCheckpoint, [](Request& r) { r.timeout_ms = 1; }},
      {"many pairs", Op::kRestore, [](Request& r) { r.pair_count = kMaxGpus + 1; }},
      {"pairs of a lock", Op::kLock, [](Request& r) { r.pair_count = 1; }},
  };
  for (const Case& c : cases) {
    Request request = ValidRequest(c.op);
    ASSERT_EQ(WhyInvalid(request, sizeof request), nullptr) << c.what;
    c.spoil(request);
    EXPECT_NE(WhyInvalid(request, sizeof request), nullptr) << c.what;
  }
  for (size_t size : {size_t{0}, sizeof(Request) - 1, sizeof(Request) + 1}) {
    EXPECT_NE(WhyInvalid(ValidRequest(Op::kLock), size), nullptr) << size;
  }
}

TEST(HelperProtocolTest, EachFieldOfAReplyIsChecked) {
  struct Case {
    const char* what;
    void (*spoil)(Reply&);
  };
  const Case cases[] = {
      {"magic", [](Reply& r) { r.magic = 0; }},
      {"version", [](Reply& r) { r.version = kVersion + 1; }},
      {"id", [](Reply& r) { r.id = 0; }},
      {"op", [](Reply& r) { r.op = static_cast<Op>(11); }},
      {"outcome", [](Reply& r) { r.outcome = static_cast<Outcome>(5); }},
      {"error without number", [](Reply& r) { r.outcome = Outcome::kDriverError; }},
      {"number without error", [](Reply& r) { r.cu_result = 1; }},
      {"state", [](Reply& r) { r.state = 4; }},
      {"negative state", [](Reply& r) { r.state = -1; }},
      {"tid", [](Reply& r) { r.tid = -1; }},
      {"gpus", [](Reply& r) { r.gpu_count = kMaxGpus + 1; }},
      {"name", [](Reply& r) { std::memset(r.cu_name, 'x', sizeof r.cu_name); }},
      {"why", [](Reply& r) { std::memset(r.driver.why_not, 'x', sizeof r.driver.why_not); }},
      {"GPU's name",
       [](Reply& r) {
         r.gpu_count = 1;
         std::memset(r.gpus[0].name, 'x', sizeof r.gpus[0].name);
       }},
      {"persistence",
       [](Reply& r) {
         r.gpu_count = 1;
         r.gpus[0].persistence = static_cast<Persistence>(3);
       }},
  };
  for (const Case& c : cases) {
    Reply reply = ValidReply();
    c.spoil(reply);
    EXPECT_NE(WhyInvalid(reply, sizeof reply), nullptr) << c.what;
  }
  for (size_t size : {size_t{0}, sizeof(Reply) - 1, sizeof(Reply) + 1}) {
    EXPECT_NE(WhyInvalid(ValidReply(), size), nullptr) << size;
  }
}

}  // namespace
}  // namespace stasis::device::cuda::wire
