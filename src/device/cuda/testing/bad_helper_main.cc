// A device helper that misbehaves. It answers hello correctly, and other requests as
// $STASIS_BAD_HELPER says: with a wrong message type, a wrong id, or not at all.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "device/cuda/helper_protocol.h"
#include "ipc/helper_process.h"

namespace {
using namespace stasis::device::cuda::wire;  // NOLINT

struct Way {
  const char* name;
  void (*spoil)(Reply&, size_t& size);
};
constexpr Way kWays[] = {
    {"short", [](Reply&, size_t& size) { size = 7; }},
    {"long", [](Reply&, size_t& size) { size = sizeof(Reply) + 1; }},
    {"magic", [](Reply& r, size_t&) { r.magic ^= 1; }},
    {"version", [](Reply& r, size_t&) { ++r.version; }},
    {"id", [](Reply& r, size_t&) { r.id += 1000; }},
    {"op", [](Reply& r, size_t&) { r.op = static_cast<Op>(99); }},
    {"other-op", [](Reply& r, size_t&) { r.op = Op::kUnlock; }},
    {"outcome", [](Reply& r, size_t&) { r.outcome = static_cast<Outcome>(99); }},
    {"state", [](Reply& r, size_t&) { r.state = 17; }},
    {"gpus", [](Reply& r, size_t&) { r.gpu_count = kMaxGpus + 1; }},
    {"text", [](Reply& r, size_t&) { std::memset(r.cu_text, 'x', sizeof r.cu_text); }},
    {"exit", [](Reply&, size_t&) { ::_exit(3); }},
};

}  // namespace

int main() {
  const char* wanted = std::getenv("STASIS_BAD_HELPER");
  if (wanted == nullptr) return 2;
  Request request;
  static char packet[sizeof(Reply) + 1];
  while (::recv(stasis::ipc::kHelperSocketFd, &request, sizeof request, 0) > 0) {
    Reply reply;
    reply.id = request.id;
    reply.op = request.op;
    size_t size = sizeof reply;
    for (const Way& way : kWays) {
      if (request.op != Op::kHello && std::strcmp(way.name, wanted) == 0) way.spoil(reply, size);
    }
    std::memcpy(packet, &reply, sizeof reply);
    ::send(stasis::ipc::kHelperSocketFd, packet, size, MSG_NOSIGNAL);
  }
  return 0;
}
