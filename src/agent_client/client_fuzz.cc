// Fuzzes a client with the answers of an untrusted agent. In the input's first byte, bits 0 to 2
// select the request that follows the handshake. If bit 3 is set, the script answers the handshake
// too; otherwise the handshake gets a valid answer. If bit 4 is set, the client is a watch, without
// a handshake of its own. The remaining bytes are a script of answers (packet_fuzz.h).
#include "agent_client/agent_watch.h"
#include "agent_client/client.h"
#include "agent_protocol/packet.h"
#include "agent_protocol/packet_fuzz.h"

namespace stasis::agent_client {

using namespace agent_protocol;  // NOLINT: the messages

namespace {

constexpr std::chrono::milliseconds kNoWait{0};

void Ask(AgentClient& client, uint8_t what) {
  switch (what % 8) {
    case 0:
      if (auto hello = client.Status(kNoWait)) FuzzCheck(hello->device_count <= kMaxDevices);
      break;
    case 1:
      if (auto list = client.ExportAll(kNoWait)) {
        FuzzCheck(list->ranges.size() == list->fds.size() && list->ranges.size() <= kMaxRanges);
        for (const UniqueFd& fd : list->fds) FuzzCheck(fd.valid());
      }
      break;
    case 2:
      if (auto list = client.Describe(kNoWait)) FuzzCheck(list->size() <= kMaxRanges);
      break;
    case 3:
      if (auto closed = client.Close(kNoWait); !closed) (void)closed.error().ToString();
      break;
    case 4:
      (void)client.Release(AgentClient::Hold::kUntilCommit, kNoWait);
      break;
    case 5:
      (void)client.Commit(kNoWait);
      break;
    case 6:
      (void)client.Map(std::vector<Range>(kMaxBatch + 1), std::vector<int>(kMaxBatch + 1, NullFd()),
                       kNoWait);
      break;
    default:
      (void)client.Open(kNoWait);
  }
}

void Check(const std::optional<AgentWants>& wants) {
  if (!wants || !wants->allocation) return;
  FuzzCheck(wants->allocation->number != 0 && wants->allocation->bytes != 0);
  FuzzCheck(wants->allocation->bytes <= uint64_t{1} << 50);
}

void Watch(UniqueFd socket, uint8_t what) {
  auto watch = GreetWatch(std::move(socket), "an agent", kNoWait);
  if (!watch) return (void)watch.error().ToString();
  if ((what & 1) != 0) (void)(*watch)->Answer(what, (what & 2) != 0);
  for (auto wants = (*watch)->Receive(); wants; wants = (*watch)->Receive()) {
    Check(*wants);
    (void)(*watch)->AskUse();
    FuzzCheck((*watch)->use().last_use <= (*watch)->use().answered);
  }
}

void Talk(FuzzInput script) {
  const auto what = script.Number<uint8_t>();
  FuzzSockets sockets;
  const bool watches = (what & 16) != 0;
  if ((what & 8) == 0 && !watches) {
    HelloReply hello{};
    Send(sockets.theirs.get(), &hello, Type::kHelloReply, sizeof(hello), nullptr, 0, 0);
  }
  // All answers are in the socket before the client sends its first request.
  Sent sent;
  while (!script.empty() && SendNext(script, sockets.theirs.get(), &sent)) {
  }
  shutdown(sockets.theirs.get(), SHUT_WR);  // a client that waits for more gets end-of-file
  if (watches) return Watch(std::move(sockets.ours), what);
  auto client = AgentClient::Greet(std::move(sockets.ours), "an agent", kNoWait);
  if (!client) return;
  const HelloReply& hello = client->hello();
  FuzzCheck(hello.device_count <= kMaxDevices && hello.range_count <= kMaxRanges);
  FuzzCheck(strnlen(hello.blocker_text, sizeof(hello.blocker_text)) < sizeof(hello.blocker_text));
  FuzzCheck(uint32_t(hello.state) <= uint32_t(State::kShut));
  Ask(*client, what);
}

}  // namespace
}  // namespace stasis::agent_client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int free = stasis::agent_protocol::FreeFds();
  stasis::agent_client::Talk({data, size});
  stasis::FuzzCheck(stasis::agent_protocol::FreeFds() == free);
  return 0;
}
