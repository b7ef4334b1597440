#include "dataplane/mover_protocol.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>

#include "dataplane/range.h"

namespace stasis::dataplane::wire {
namespace {

Request Valid(Op op) {
  Request request;
  request.id = 1;
  request.op = op;
  if (op == Op::kImport || op == Op::kCreate || op == Op::kExport || op == Op::kLoadParts) {
    request.count = 3;
  }
  return request;
}

size_t FdsOf(Op op) {
  if (op == Op::kAttach || op == Op::kHash) return 1;
  return op == Op::kImport ? 3 : 0;
}

TEST(MoverProtocol, EveryOperationHasAValidRequest) {
  for (auto i = uint32_t{1}; i <= static_cast<uint32_t>(Op::kLast); ++i) {
    const Op op = static_cast<Op>(i);
    Request request = Valid(op);
    EXPECT_EQ(WhyInvalid(request, sizeof request, FdsOf(op)), nullptr) << OpName(op);
    EXPECT_NE(WhyInvalid(request, sizeof request, FdsOf(op) + 2), nullptr) << OpName(op);
    // Hello may carry a lock.
    EXPECT_EQ(WhyInvalid(request, sizeof request, FdsOf(op) + 1) == nullptr, op == Op::kHello);
    EXPECT_NE(WhyInvalid(request, sizeof request - 1, FdsOf(op)), nullptr);
  }
}

TEST(MoverProtocol, WrongRequestsAreRefused) {
  const std::function<void(Request&)> kWrong[] = {
      [](Request& r) { r.magic = 0; },
      [](Request& r) { r.version = kVersion + 1; },
      [](Request& r) { r.id = 0; },
      [](Request& r) { r.op = Op{0}; },
      [](Request& r) { r.op = Op{99}; },
      [](Request& r) { r.flags = kFlagLeave; },
      [](Request& r) { r.flags = kFlagSkip; },
      [](Request& r) { r.bytes = kMaxTotalBytes + 1; },
      [](Request& r) { r.ballast_bytes = ~0ull; },
      [](Request& r) { r.count = 0; },
      [](Request& r) { r.count = kMaxBatch + 1; },
      [](Request& r) { r.first = ~0u; },
  };
  for (size_t i = 0; i < std::size(kWrong); ++i) {
    Request request = Valid(Op::kCreate);
    kWrong[i](request);
    EXPECT_NE(WhyInvalid(request, sizeof request, 0), nullptr) << i;
  }
}

TEST(MoverProtocol, WrongRepliesAreRefused) {
  const std::function<void(Reply&)> kWrong[] = {
      [](Reply& r) { r.magic = 0; },
      [](Reply& r) { r.version = 0; },
      [](Reply& r) { r.op = Op{0}; },
      [](Reply& r) { r.code = 99; },
      [](Reply& r) { r.domain = 99; },
      [](Reply& r) { r.raw = 1; },
      [](Reply& r) { r.fatal = 1; },
      [](Reply& r) { std::memset(r.message, 'x', sizeof r.message); },
      [](Reply& r) { std::memset(r.hint, 'x', sizeof r.hint); },
      [](Reply& r) { r.count = 1; },
      [](Reply& r) { r.count = kMaxBatch + 1; },
  };
  Reply good;
  EXPECT_EQ(WhyInvalid(good, sizeof good, 0), nullptr);
  for (size_t i = 0; i < std::size(kWrong); ++i) {
    Reply reply;
    kWrong[i](reply);
    EXPECT_NE(WhyInvalid(reply, sizeof reply, 0), nullptr) << i;
  }
  Reply fds;
  fds.count = 1;
  EXPECT_NE(WhyInvalid(fds, sizeof fds, 1), nullptr) << "descriptors with a hello";
}

TEST(MoverProtocol, AnErrorArrivesAsItWas) {
  Error error{
      Code::kResourceExhausted, Domain::kCuda, 2, "cuMemCreate: no", "less", {"outer"}, false};
  Reply reply;
  Put(reply, error);
  EXPECT_EQ(WhyInvalid(reply, sizeof reply, 0), nullptr);
  Status status = ErrorOf(reply);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, error.code);
  EXPECT_EQ(status.error().domain, error.domain);
  EXPECT_EQ(status.error().raw, 2);
  EXPECT_EQ(status.error().message, "outer: cuMemCreate: no");
  EXPECT_EQ(status.error().hint, "less");
  Put(reply, Error{Code::kInternal, Domain::kStasis, 0, std::string(5000, 'x'), {}, {}, false});
  EXPECT_EQ(WhyInvalid(reply, sizeof reply, 0), nullptr);
}

}  // namespace
}  // namespace stasis::dataplane::wire
