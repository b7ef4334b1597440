#include "dataplane/mover_protocol.h"

#include <cassert>

#include "dataplane/range.h"
#include "ipc/message.h"

namespace stasis::dataplane::wire {
namespace {

struct OpRow {
  Op op;
  const char* name;
  bool batch;  // has ranges or descriptors starting at `first`
};
constexpr OpRow kOps[] = {
    {Op::kHello, "start", false},
    {Op::kAttach, "attach the arena", false},
    {Op::kDetach, "detach the arena", false},
    {Op::kWarm, "prepare the arena", false},
    {Op::kMeasure, "measure the speed of the bus", false},
    {Op::kBeginSave, "begin a save", false},
    {Op::kImport, "import GPU memory", true},
    {Op::kSave, "copy GPU memory to the arena", false},
    {Op::kBeginLoad, "begin a load", false},
    {Op::kCreate, "create GPU memory", true},
    {Op::kFreeBallast, "free the ballast", false},
    {Op::kLoad, "copy the arena to GPU memory", false},
    {Op::kExport, "export GPU memory", true},
    {Op::kRelease, "release GPU memory", false},
    {Op::kEnd, "end its session", false},
    {Op::kPrepareHashes, "prepare to hash blocks", false},
    {Op::kMeasureHashing, "measure how fast it hashes blocks", false},
    {Op::kLoadParts, "copy parts to GPU memory", true},
    {Op::kHash, "hash the loaded GPU memory", false},
};

const OpRow* Find(Op op) {
  for (const OpRow& row : kOps) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

}  // namespace

const char* OpName(Op op) {
  const OpRow* row = Find(op);
  return row == nullptr ? "unknown" : row->name;
}

const char* WhyInvalid(const Request& r, size_t size, size_t fds) {
  if (const char* why = ipc::WhyNoMessage(r, size, kMagic, kVersion)) return why;
  if (r.id == 0) return "a request without an id";
  const OpRow* row = Find(r.op);
  if (row == nullptr) return "an unknown operation";
  const uint32_t with_file = r.op == Op::kSave ? kFlagHashes : r.op == Op::kLoad ? kFlagSkip : 0;
  const uint32_t flags = r.op == Op::kEnd ? kFlagLeave : kFlagChecksum | with_file;
  if ((r.flags & ~flags) != 0) return "an unknown flag";
  if (r.bytes > kMaxTotalBytes || r.ballast_bytes > kMaxTotalBytes) return "too many bytes";
  if (row->batch ? r.count == 0 || r.count > kMaxBatch : r.count > kMaxRanges) {
    return "an invalid number of allocations";
  }
  if (r.first > kMaxRanges) return "an invalid index";
  const bool one = r.op == Op::kAttach || r.op == Op::kHash || (r.flags & with_file) != 0;
  const size_t expected = one ? 1 : r.op == Op::kImport ? r.count : 0;
  if (fds != expected && !(r.op == Op::kHello && fds == 1)) {
    return "the wrong number of descriptors";
  }
  return nullptr;
}

const char* WhyInvalid(const Reply& r, size_t size, size_t fds) {
  if (const char* why = ipc::WhyNoMessage(r, size, kMagic, kVersion)) return why;
  if (Find(r.op) == nullptr) return "a reply to an unknown operation";
  if (r.code > static_cast<uint32_t>(Code::kDataLoss)) return "an unknown error";
  if (r.domain > static_cast<uint32_t>(Domain::kUsage)) return "an unknown domain";
  if (r.code == 0 && (r.raw != 0 || r.fatal != 0)) return "an error without a code";
  if (!ipc::IsTerminated(r.message) || !ipc::IsTerminated(r.hint)) return "an unterminated string";
  if (r.count > kMaxBatch || fds != r.count) return "the wrong number of descriptors";
  if (r.count != 0 && r.op != Op::kExport) return "descriptors where none belong";
  return nullptr;
}

void Put(Reply& reply, const Error& error) {
  assert(error.code != Code::kOk);  // code 0 would mean success in ErrorOf()
  reply.code = static_cast<uint32_t>(error.code);
  reply.domain = static_cast<uint32_t>(error.domain);
  reply.raw = error.raw;
  ipc::PutText(reply.message, error.ToString());
  ipc::PutText(reply.hint, error.hint);
}

Status ErrorOf(const Reply& reply) {
  if (reply.code == 0) return {};
  return Fail(static_cast<Code>(reply.code), static_cast<Domain>(reply.domain), reply.raw,
              reply.message, reply.hint);
}

}  // namespace stasis::dataplane::wire
