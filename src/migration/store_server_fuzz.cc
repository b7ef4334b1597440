// Fuzzes both sides of a migration's channel: the server of an object store with the input as
// requests, and its client with the input as replies. Each input is used twice: first it follows
// the greeting unchanged, then it is cut into well-formed frames. One byte of it is the type of a
// frame, two bytes are the length of the header and two the length of the payload; header and
// payload follow.
#include "migration/store_server.h"

#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "base/file.h"
#include "base/fuzz_input.h"
#include "base/little_endian.h"
#include "migration/piped_store.h"
#include "objects/object_key.h"
#include "objects/testing/memory_store.h"

namespace stasis::migration {
namespace {

constexpr size_t kMaxInput = 32 << 10;  // a pipe's buffer holds it

std::string Frames(FuzzInput input) {
  std::string frames;
  while (!input.empty()) {
    AppendNumber(frames, uint16_t{input.Number<uint8_t>()});
    AppendNumber(frames, uint16_t{0});
    const size_t header_bytes = input.Number<uint16_t>(), payload_bytes = input.Number<uint16_t>();
    const std::string_view header = input.Bytes(header_bytes), payload = input.Bytes(payload_bytes);
    AppendNumber(frames, static_cast<uint32_t>(header.size()));
    AppendNumber(frames, uint64_t{payload.size()});
    frames.append(header).append(payload);
  }
  return frames;
}

// Opens a channel that receives `bytes` and then end-of-file, and whose output is discarded.
std::unique_ptr<Channel> Receiving(std::string_view bytes) {
  int ends[2];
  FuzzCheck(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd input(ends[0]), rest(ends[1]), output(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  std::string all = "\x89STSmig\n";
  AppendNumber(all, kProtocolVersion);
  all += bytes;
  FuzzCheck(WriteAll(rest.get(), all).has_value());
  auto channel = Channel::Open(std::move(input), std::move(output), {});
  FuzzCheck(channel.has_value());
  return std::move(*channel);
}

void Serve(std::string_view bytes) {
  const auto channel = Receiving(bytes);
  objects::testing::MemoryStore store;
  for (;;) {
    const auto frame = channel->Receive({}, {});
    if (!frame) break;
    FuzzCheck(frame->header.size() <= bytes.size());
    const auto served = ServeObjectRequest(store, *frame, *channel, {});
    if (!served) break;
    FuzzCheck(*served == (frame->type >= 1 && frame->type <= 6));
  }
  for (const auto& [key, data] : store.Objects()) {
    FuzzCheck(objects::CheckKey(key) && data.size() <= bytes.size());
  }
}

struct CountingSink : objects::Sink {
  Status Write(std::string_view part) override {
    bytes += part.size();
    return {};
  }
  uint64_t Rewind() override { return bytes; }
  uint64_t bytes = 0;
};

// Calls every method as long as there are replies.
void Use(std::string_view bytes) {
  const auto channel = Receiving(bytes);
  PipedStore store(*channel, "fuzz");
  Status left;
  while (left) {
    CountingSink sink;
    FuzzCheck(!store.Get("key", 0, 5, sink) || sink.bytes == 5);
    if (auto whole = store.GetWhole("key", 7)) FuzzCheck(whole->size() <= 7);
    if (auto page = store.List("a/", "a/b", 2)) {
      FuzzCheck(page->objects.size() <= 2 && !(page->more && page->objects.empty()));
      for (const auto& object : page->objects) {
        FuzzCheck(object.key.starts_with("a/") && object.key > "a/b");
        FuzzCheck(objects::CheckKey(object.key).has_value());
      }
    }
    (void)store.RemoveLeftovers(std::chrono::seconds(1));
    left = store.Delete("key");
    if (left || left.error().code != Code::kUnavailable) continue;
    FuzzCheck(left.error().message.find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace stasis::migration

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::migration;  // NOLINT(google-build-using-namespace)
  if (size > kMaxInput) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string frames = Frames(stasis::FuzzInput(data, size));
  for (const std::string_view input : {bytes, std::string_view(frames)}) {
    Serve(input);
    Use(input);
  }
  return 0;
}
