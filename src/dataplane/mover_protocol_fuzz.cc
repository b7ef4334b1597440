// Fuzzes the validation of packets on both sides. The first input byte is the number of
// descriptors. If the second byte is even, magic and version are corrected and the packet is padded
// with zeros; if odd, it keeps its length. The packet follows.
#include "dataplane/mover_protocol.h"

#include <cstring>

#include "base/fuzz_input.h"
#include "dataplane/range.h"

namespace stasis::dataplane::wire {
namespace {

template <class Message>
Message Take(FuzzInput input, size_t* size) {
  Message message;
  std::memset(static_cast<void*>(&message), 0, sizeof message);
  const bool is_whole = (input.Number<uint8_t>() & 1) == 0;
  std::string_view bytes = input.Bytes(sizeof message);
  *size = is_whole ? sizeof message : bytes.size();
  if (!bytes.empty()) std::memcpy(static_cast<void*>(&message), bytes.data(), bytes.size());
  if (is_whole) {
    message.magic = kMagic;
    message.version = kVersion;
  }
  return message;
}

void JudgeRequest(const Request& request, size_t size, size_t fds) {
  if (WhyInvalid(request, size, fds) != nullptr) return;
  FuzzCheck(size == sizeof request && request.id != 0);
  FuzzCheck(std::strcmp(OpName(request.op), "unknown") != 0);
  FuzzCheck(request.bytes <= kMaxTotalBytes && request.ballast_bytes <= kMaxTotalBytes);
  FuzzCheck(request.count <= kMaxRanges && request.first <= kMaxRanges);
  switch (request.op) {
    case Op::kImport:
      FuzzCheck(fds == request.count);
      [[fallthrough]];
    case Op::kCreate:
    case Op::kLoadParts:
    case Op::kExport:
      FuzzCheck(request.count > 0 && request.count <= kMaxBatch);
      break;
    default:
      FuzzCheck(fds <= 1);
  }
}

void JudgeReply(const Reply& reply, size_t size, size_t fds) {
  if (WhyInvalid(reply, size, fds) != nullptr) return;
  FuzzCheck(size == sizeof reply && fds == reply.count && fds <= kMaxBatch);
  auto status = ErrorOf(reply);
  FuzzCheck(status.has_value() == (reply.code == 0));
  if (status) return;
  FuzzCheck(status.error().message.size() < sizeof reply.message);
  Reply again;
  Put(again, status.error());
  FuzzCheck(std::memchr(again.message, 0, sizeof again.message) != nullptr);
}

}  // namespace
}  // namespace stasis::dataplane::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::dataplane::wire;
  stasis::FuzzInput input(data, size);
  const size_t fds = input.Number<uint8_t>();
  size_t bytes = 0;
  const Request request = Take<Request>(input, &bytes);
  JudgeRequest(request, bytes, fds);
  const Reply reply = Take<Reply>(input, &bytes);
  JudgeReply(reply, bytes, fds);
  return 0;
}
