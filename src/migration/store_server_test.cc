#include "migration/store_server.h"

#include "migration/object_message.h"
#include "migration/testing/peers.h"
#include "objects/testing/conformance.h"
#include "objects/testing/memory_store.h"

namespace stasis::migration {
namespace {

using objects::CallOptions;
using objects::testing::MemoryStore;

// A store that checks nothing and records whether it was called.
class RecordingStore final : public objects::ObjectStore {
 public:
  Status Put(const std::string&, std::span<const std::string_view>, const CallOptions&) override {
    return Note();
  }
  Status Get(const std::string&, uint64_t, uint64_t, objects::Sink&, const CallOptions&) override {
    return Note();
  }
  Result<std::string> GetWhole(const std::string&, uint64_t most, const CallOptions&) override {
    max_bytes = most;
    return Note().map([] { return std::string(); });
  }
  Result<objects::ListPage> List(const std::string&, const std::string&, uint32_t,
                                 const CallOptions&) override {
    return Note().map([] { return objects::ListPage(); });
  }
  Status Delete(const std::string&, const CallOptions&) override { return Note(); }
  Result<uint64_t> RemoveLeftovers(std::chrono::seconds age, const CallOptions&) override {
    older_than = age;
    return Note().map([] { return uint64_t{3}; });
  }
  std::string Name() const override { return "recording"; }
  objects::Counters counters() const override { return {}; }

  int calls = 0;
  uint64_t max_bytes = 0;
  std::chrono::seconds older_than{0};

 private:
  Status Note() {
    ++calls;
    return {};
  }
};

class StoreServerTest : public ::testing::Test {
 protected:
  StoreServerTest() { std::tie(client_, server_) = testing::OpenBoth(testing::Sockets()); }

  // Sends a request, serves it and returns the reply. Small messages only.
  Result<wire::ObjectReply> Ask(ObjectMessage type, const std::string& header,
                                std::string_view payload = {}) {
    const std::string_view pieces[] = {payload};
    STASIS_TRY(client_->Send({static_cast<uint16_t>(type), header, pieces}, {}));
    STASIS_ASSIGN(const Frame request, server_->Receive({}, {}));
    STASIS_ASSIGN(const bool served, ServeObjectRequest(*used_, request, *server_, {}));
    EXPECT_TRUE(served);
    STASIS_ASSIGN(const Frame frame, client_->Receive({}, {}));
    wire::ObjectReply reply;
    EXPECT_TRUE(reply.ParseFromString(frame.header));
    if (reply.has_error()) return Fail(DecodeError(reply.error()));
    return reply;
  }
  Result<wire::ObjectReply> Ask(ObjectMessage type, const wire::ObjectRequest& request,
                                std::string_view payload = {}) {
    return Ask(type, request.SerializeAsString(), payload);
  }

  testing::ChannelPtr client_, server_;
  MemoryStore store_;
  RecordingStore recording_;
  objects::ObjectStore* used_ = &store_;
};

TEST_F(StoreServerTest, LeavesOtherMessagesToItsCaller) {
  for (const uint16_t type : {0, 7, 8, 65535}) {
    const std::string_view payload[] = {"other"};
    EXPECT_SUCCESS(client_->Send({type, "header", payload}, {}));
    const auto frame = server_->Receive({}, {});
    ASSERT_TRUE(frame);
    const auto served = ServeObjectRequest(store_, *frame, *server_, {});
    ASSERT_TRUE(served);
    EXPECT_FALSE(*served);
    EXPECT_EQ(*server_->ReadPayload({}), "other");
  }
  EXPECT_CODE(client_->Receive({}, {Deadline::In(std::chrono::milliseconds(1)), {}}),
              Code::kDeadlineExceeded);
}

TEST_F(StoreServerTest, RefusesBadKeysBeforeTheStoreIsAsked) {
  used_ = &recording_;
  for (const std::string& key : {std::string(), std::string("../a"), std::string("/etc/passwd"),
                                 std::string("a\0b", 3), std::string(600, 'k')}) {
    wire::ObjectRequest request;
    request.set_key(key);
    EXPECT_CODE(Ask(ObjectMessage::kPut, request, "data"), Code::kInvalidArgument);
    EXPECT_CODE(Ask(ObjectMessage::kGet, request), Code::kInvalidArgument);
    EXPECT_CODE(Ask(ObjectMessage::kGetWhole, request), Code::kInvalidArgument);
    EXPECT_CODE(Ask(ObjectMessage::kDelete, request), Code::kInvalidArgument);
  }
  wire::ObjectRequest list;
  EXPECT_CODE(Ask(ObjectMessage::kList, list), Code::kInvalidArgument);
  list.set_limit(1001);
  EXPECT_CODE(Ask(ObjectMessage::kList, list), Code::kInvalidArgument);
  list.set_limit(1);
  list.set_key("../");
  EXPECT_CODE(Ask(ObjectMessage::kList, list), Code::kInvalidArgument);
  EXPECT_EQ(recording_.calls, 0);
}

TEST_F(StoreServerTest, RefusesDamagedAndUnexpectedRequests) {
  EXPECT_CODE(Ask(ObjectMessage::kGet, std::string("\x0a\x7f")), Code::kInvalidArgument);
  wire::ObjectRequest request;
  request.set_key("key");
  EXPECT_CODE(Ask(ObjectMessage::kDelete, request, "a payload"), Code::kInvalidArgument);
  request.set_bytes(kMaxPayloadBytes + 1);
  EXPECT_CODE(Ask(ObjectMessage::kGet, request), Code::kOutOfRange);
  // The connection can still be used.
  EXPECT_SUCCESS(Ask(ObjectMessage::kPut, request, "data"));
  EXPECT_EQ(store_.Objects().at("key"), "data");
  EXPECT_CODE(Ask(ObjectMessage::kGet, request), Code::kOutOfRange);
  request.set_bytes(UINT64_MAX);
  EXPECT_SUCCESS(Ask(ObjectMessage::kGetWhole, request));
}

TEST_F(StoreServerTest, AnObjectThatArrivesInPartIsNotStored) {
  testing::RawPeer raw;
  wire::ObjectRequest request;
  request.set_key("key");
  const std::string header = request.SerializeAsString();
  raw.Say(testing::Head(static_cast<uint16_t>(ObjectMessage::kPut),
                        static_cast<uint32_t>(header.size()), 1000) +
          header + "some");
  ::shutdown(raw.peer.get(), SHUT_WR);
  const auto frame = raw.channel->Receive({}, {});
  ASSERT_TRUE(frame);
  EXPECT_CODE(ServeObjectRequest(store_, *frame, *raw.channel, {}), Code::kUnavailable);
  EXPECT_TRUE(store_.Objects().empty());
}

TEST_F(StoreServerTest, BoundsNumbersThatAreTooLarge) {
  used_ = &recording_;
  wire::ObjectRequest request;
  request.set_key("key");
  request.set_bytes(UINT64_MAX);
  EXPECT_SUCCESS(Ask(ObjectMessage::kGetWhole, request));
  EXPECT_EQ(recording_.max_bytes, kMaxPayloadBytes);
  request.set_older_than_s(UINT64_MAX);
  EXPECT_EQ(Ask(ObjectMessage::kRemoveLeftovers, request)->removed(), 3u);
  EXPECT_GT(recording_.older_than, std::chrono::hours(24 * 365));
}

}  // namespace
}  // namespace stasis::migration
