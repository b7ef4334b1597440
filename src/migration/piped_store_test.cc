#include "migration/piped_store.h"

#include <stdlib.h>

#include <atomic>

#include "base/file.h"
#include "migration/testing/peers.h"
#include "objects/folder_store.h"
#include "objects/testing/conformance.h"
#include "objects/testing/memory_store.h"

namespace stasis::objects::testing {
namespace {

namespace peers = migration::testing;

StoreUnderTest ServeStore(std::shared_ptr<ObjectStore> store,
                          std::pair<peers::End, peers::End> ends) {
  auto served = std::make_shared<peers::ServedStore>(std::move(store), std::move(ends));
  auto piped = std::make_shared<migration::PipedStore>(served->client(), "host:/folder");
  return {served, piped};
}

StoreUnderTest ServeFolder(std::pair<peers::End, peers::End> ends) {
  std::string path = ::testing::TempDir() + "piped-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return {};
  auto store = FolderStore::Open(path);
  if (!store) return {};
  const std::shared_ptr<FolderStore> folder(store->release(), [path](FolderStore* open) {
    delete open;
    (void)RemoveTree(path);
  });
  return ServeStore(folder, std::move(ends));
}

INSTANTIATE_TEST_SUITE_P(
    Piped, ObjectStoreTest,
    ::testing::Values(
        StoreKind{"memory",
                  [] { return ServeStore(std::make_shared<MemoryStore>(), peers::Sockets()); }},
        StoreKind{"folder", [] { return ServeFolder(peers::Sockets()); }},
        StoreKind{"folder_through_pipes", [] { return ServeFolder(peers::Pipes()); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stasis::objects::testing

namespace stasis::migration {
namespace {

using objects::CallOptions;
using objects::testing::CollectingSink;
using objects::testing::MemoryStore;
using objects::testing::Pattern;
using objects::testing::PutText;
using testing::Head;

std::string ReplyFrame(const wire::ObjectReply& reply, std::string_view payload = {}) {
  const std::string header = reply.SerializeAsString();
  return Head(static_cast<uint16_t>(ObjectMessage::kReply), static_cast<uint32_t>(header.size()),
              payload.size()) +
         header + std::string(payload);
}

// The tests write the reply of the other side before the store sends its request.
struct ScriptedStore : testing::RawPeer {
  PipedStore store{*channel, "host:/folder"};
};

TEST(PipedStoreTest, AnErrorOfTheSinkLeavesTheChannelUsable) {
  testing::ServedStore served(std::make_shared<MemoryStore>(), testing::Sockets());
  PipedStore store(served.client(), "host:/folder");
  const std::string large = Pattern(5'000'000);
  EXPECT_SUCCESS(PutText(store, "large", large));
  CollectingSink sink;
  sink.fail_with = Error{Code::kDataLoss, Domain::kImage, 0, "unit 3 is damaged"};
  EXPECT_CODE(store.Get("large", 0, large.size(), sink), Code::kDataLoss);
  EXPECT_EQ(store.counters().bytes_received, 0u);
  EXPECT_TRUE(*store.GetWhole("large", large.size()) == large);
}

TEST(PipedStoreTest, TransfersThatTheOtherSideRepeatsAreNotSeen) {
  auto memory = std::make_shared<MemoryStore>();
  testing::ServedStore served(memory, testing::Sockets());
  PipedStore store(served.client(), "host:/folder");
  const std::string data = Pattern(300'000);
  EXPECT_SUCCESS(PutText(store, "key", data));
  memory->BreakTransfers(2, 100'000);
  CollectingSink sink;
  EXPECT_SUCCESS(store.Get("key", 10, 299'000, sink));
  EXPECT_TRUE(sink.data == data.substr(10, 299'000));
}

TEST(PipedStoreTest, ErrorsOfTheOtherStoreNameBoth) {
  auto memory = std::make_shared<MemoryStore>();
  testing::ServedStore served(memory, testing::Sockets());
  PipedStore store(served.client(), "host:/folder");
  memory->set_hook([](auto, const auto&) -> Status {
    Error error{Code::kResourceExhausted, Domain::kErrno, 28, "no\nspace", "delete something"};
    return Fail(std::move(error).WithContext("write a file"));
  });
  const Status put = PutText(store, "a/b", "text");
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().ToString(), "write a/b of host:/folder: write a file: no?space");
  EXPECT_EQ(put.error().code, Code::kResourceExhausted);
  EXPECT_EQ(put.error().domain, Domain::kErrno);
  EXPECT_EQ(put.error().raw, 28);
  EXPECT_EQ(put.error().hint, "delete something");
  memory->set_hook(nullptr);
  EXPECT_SUCCESS(PutText(store, "a/b", "text"));
}

TEST(PipedStoreTest, UnknownCodesOfErrorsAreReplaced) {
  wire::Error message;
  message.set_code(4711);
  message.set_domain(4711);
  EXPECT_EQ(DecodeError(message).code, Code::kUnknown);
  EXPECT_EQ(DecodeError(message).domain, Domain::kStasis);
  message.set_code(0);
  EXPECT_EQ(DecodeError(message).code, Code::kUnknown);
  message = EncodeError(
      Error{Code::kInternal, Domain::kStasis, 0, std::string(9000, 'm'), "h", {}, true});
  EXPECT_EQ(message.message().size(), 4096u);
  EXPECT_TRUE(DecodeError(message).not_undone);
}

TEST(PipedStoreTest, APeerThatClosesWithinAReplyBreaksTheStore) {
  ScriptedStore scripted;
  scripted.Say(Head(static_cast<uint16_t>(ObjectMessage::kReply), 0, 4) + "da");
  ::shutdown(scripted.peer.get(), SHUT_WR);
  CollectingSink sink;
  const Status got = scripted.store.Get("key", 0, 4, sink);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kUnavailable);
  EXPECT_EQ(got.error().ToString(),
            "read key of host:/folder: the other side has closed the connection in the middle of "
            "a message");
  EXPECT_CODE(scripted.store.Delete("key"), Code::kUnavailable);
}

TEST(PipedStoreTest, AReplyThatDoesNotFitTheRequestBreaksTheStore) {
  const std::string data(5, 'd');
  std::string damaged = Head(static_cast<uint16_t>(ObjectMessage::kReply), 2, 0) + "\x0a\x7f";
  for (const std::string& reply :
       {ReplyFrame({}, "123"), ReplyFrame({}, "12345"), Head(99, 0, 4) + "1234", damaged,
        Head(static_cast<uint16_t>(ObjectMessage::kReply), 0, UINT64_MAX)}) {
    ScriptedStore scripted;
    scripted.Say(reply);
    CollectingSink sink;
    EXPECT_CODE(scripted.store.Get("key", 0, 4, sink), Code::kInternal);
    EXPECT_EQ(sink.data, "");
    EXPECT_CODE(scripted.store.Delete("key"), Code::kUnavailable);
  }
  ScriptedStore scripted;
  scripted.Say(ReplyFrame({}, "data to a Put"));
  EXPECT_CODE(PutText(scripted.store, "key", "text"), Code::kInternal);
}

TEST(PipedStoreTest, ChecksLists) {
  auto list = [](bool more, const std::vector<std::string>& keys) {
    wire::ObjectReply reply;
    reply.set_more(more);
    for (const std::string& key : keys) reply.add_objects()->set_key(key);
    ScriptedStore scripted;
    scripted.Say(ReplyFrame(reply));
    return scripted.store.List("p/", "p/b", 2);
  };
  EXPECT_SUCCESS(list(true, {"p/c", "p/d"}));
  EXPECT_CODE(list(true, {}), Code::kInternal);
  EXPECT_CODE(list(false, {"p/c", "p/d", "p/e"}), Code::kInternal);
  EXPECT_CODE(list(false, {"p/d", "p/c"}), Code::kInternal);
  EXPECT_CODE(list(false, {"p/c", "p/c"}), Code::kInternal);
  EXPECT_CODE(list(false, {"p/b"}), Code::kInternal);
  EXPECT_CODE(list(false, {"q"}), Code::kInternal);
  EXPECT_CODE(list(false, {"p/../c"}), Code::kInternal);
}

TEST(PipedStoreTest, RefusesObjectsThatAreTooLong) {
  ScriptedStore scripted;
  const std::string piece(1 << 20, 'p');
  const std::vector<std::string_view> pieces(129, piece);
  EXPECT_CODE(scripted.store.Put("key", pieces), Code::kOutOfRange);
  scripted.Say(ReplyFrame({}));
  EXPECT_SUCCESS(scripted.store.Delete("key"));
}

TEST(PipedStoreTest, AStopEndsACallThatIsNotAnswered) {
  ScriptedStore scripted;
  const testing::StopsTheSleeper stop;
  EXPECT_CODE(PutText(scripted.store, "", "no key"), Code::kInvalidArgument);
  EXPECT_CODE(scripted.store.GetWhole("key", 9, {{}, stop.token()}), Code::kCancelled);
  // The late reply must not be taken for the reply to the next call.
  scripted.Say(ReplyFrame({}));
  const Status next = scripted.store.Delete("key");
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code, Code::kUnavailable);
  EXPECT_EQ(next.error().message, "the connection is broken: cancelled");
}

TEST(PipedStoreTest, ADeadlineEndsACallThatIsNotAnswered) {
  ScriptedStore scripted;
  const CallOptions soon{Deadline::In(std::chrono::milliseconds(10)), {}};
  EXPECT_CODE(scripted.store.GetWhole("key", 9, soon), Code::kDeadlineExceeded);
  EXPECT_CODE(scripted.store.Delete("key"), Code::kUnavailable);
}

TEST(PipedStoreTest, ACallThatWaitsForItsTurnKeepsItsLimits) {
  ScriptedStore scripted;
  Status first;
  auto thread = Thread::Start([&] { first = scripted.store.Delete("first"); });
  ASSERT_TRUE(thread);
  std::string request(Head(0, 0, 0).size() + testing::Greeting().size() + 1, '\0');
  ASSERT_EQ(::recv(scripted.peer.get(), request.data(), request.size(), MSG_WAITALL),
            static_cast<ssize_t>(request.size()));
  // The first call is using the channel now.
  const CallOptions soon{Deadline::In(std::chrono::milliseconds(10)), {}};
  EXPECT_CODE(scripted.store.Delete("second", soon), Code::kDeadlineExceeded);
  const testing::StopsTheSleeper stop;
  EXPECT_CODE(scripted.store.Delete("third", {{}, stop.token()}), Code::kCancelled);
  scripted.Say(ReplyFrame({}) + ReplyFrame({}));
  thread->Join();
  EXPECT_TRUE(first) << first.error().ToString();
  EXPECT_SUCCESS(scripted.store.Delete("fourth"));
  EXPECT_EQ(scripted.store.counters().requests, 2u);
}

TEST(PipedStoreTest, WaitingCallsFailWhenTheChannelBreaks) {
  ScriptedStore scripted;
  std::atomic<int> unavailable = 0;
  {
    std::vector<Thread> threads;
    for (int i = 0; i < 8; ++i) {
      auto thread = Thread::Start([&] {
        const auto got = scripted.store.GetWhole("key", 9);
        if (!got && got.error().code == Code::kUnavailable) ++unavailable;
      });
      ASSERT_TRUE(thread);
      threads.push_back(std::move(*thread));
    }
    scripted.peer.Reset();
  }
  EXPECT_EQ(unavailable, 8);
}

}  // namespace
}  // namespace stasis::migration
