// Connections for tests: two channels, or a channel and a raw descriptor.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/little_endian.h"
#include "base/thread.h"
#include "migration/channel.h"
#include "migration/store_server.h"

namespace stasis::migration::testing {

using ChannelPtr = std::unique_ptr<Channel>;

struct End {
  UniqueFd input, output;
};

inline std::pair<End, End> Sockets() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  auto end = [](int fd) { return End{UniqueFd(::dup(fd)), UniqueFd(fd)}; };
  return {end(ends[0]), end(ends[1])};
}

inline std::pair<End, End> Pipes() {
  int to[2] = {-1, -1}, from[2] = {-1, -1};
  EXPECT_EQ(::pipe2(to, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(from, O_CLOEXEC), 0);
  return {End{UniqueFd(from[0]), UniqueFd(to[1])}, End{UniqueFd(to[0]), UniqueFd(from[1])}};
}

inline ChannelPtr OpenEnd(End end) {
  auto channel = Channel::Open(std::move(end.input), std::move(end.output), {});
  EXPECT_TRUE(channel) << channel.error().ToString();
  return channel ? std::move(*channel) : nullptr;
}

inline std::pair<ChannelPtr, ChannelPtr> OpenBoth(std::pair<End, End> ends) {
  std::pair<ChannelPtr, ChannelPtr> channels;
  auto thread = Thread::Start([&] { channels.second = OpenEnd(std::move(ends.second)); });
  EXPECT_TRUE(thread);
  channels.first = OpenEnd(std::move(ends.first));
  thread->Join();
  return channels;
}

inline std::string Greeting(uint32_t version = kProtocolVersion) {
  std::string greeting = "\x89STSmig\n";
  AppendNumber(greeting, version);
  return greeting;
}

inline std::string Head(uint16_t type, uint32_t header_bytes, uint64_t payload_bytes,
                        uint16_t flags = 0) {
  std::string head;
  AppendNumber(head, type);
  AppendNumber(head, flags);
  AppendNumber(head, header_bytes);
  AppendNumber(head, payload_bytes);
  return head;
}

// A channel whose other side is a descriptor of the test.
struct RawPeer {
  RawPeer() {
    auto [ours, theirs] = Sockets();
    peer = std::move(theirs.output);
    Say(Greeting());
    channel = OpenEnd(std::move(ours));
  }
  void Say(std::string_view bytes) { EXPECT_TRUE(WriteAll(peer.get(), bytes)); }

  UniqueFd peer;
  ChannelPtr channel;
};

// Serves a store on a thread of its own until the client's channel is closed.
class ServedStore {
 public:
  ServedStore(std::shared_ptr<objects::ObjectStore> store, std::pair<End, End> ends)
      : store_(std::move(store)), channels_(OpenBoth(std::move(ends))) {
    auto thread = Thread::Start([this] { Serve(); });
    EXPECT_TRUE(thread);
    thread_ = std::move(*thread);
  }
  ~ServedStore() { channels_.first.reset(); }

  Channel& client() { return *channels_.first; }

 private:
  void Serve() {
    for (;;) {
      const auto frame = channels_.second->Receive({}, {});
      if (!frame) break;
      const auto served = ServeObjectRequest(*store_, *frame, *channels_.second, {});
      if (!served) break;
      EXPECT_TRUE(*served);
    }
  }

  std::shared_ptr<objects::ObjectStore> store_;
  std::pair<ChannelPtr, ChannelPtr> channels_;
  Thread thread_;
};

// Requests a stop as soon as the thread that constructed this object sleeps.
class StopsTheSleeper {
 public:
  StopsTheSleeper() {
    auto thread = Thread::Start([this, sleeper = ::gettid()] {
      const std::string stat = "/proc/self/task/" + std::to_string(sleeper) + "/stat";
      started_.wait(false);
      while (ReadFile(stat).value_or("").find(") S ") == std::string::npos) {
        std::this_thread::yield();
      }
      source_.request_stop();
    });
    EXPECT_TRUE(thread);
    thread_ = std::move(*thread);
    started_ = true;
    started_.notify_all();
  }
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::atomic<bool> started_ = false;
  Thread thread_;
};

}  // namespace stasis::migration::testing
