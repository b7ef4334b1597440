#include "migration/piped_store.h"

#include <algorithm>
#include <chrono>

#include "objects/object_key.h"

namespace stasis::migration {
namespace {

using objects::CallOptions;

constexpr size_t kBufferBytes = 1 << 20;

Error WrongReply(const std::string& why) {
  return Error{Code::kInternal, Domain::kStasis, 0, "the other side sent a wrong reply: " + why};
}

// The rules of ObjectStore::List(). Callers that page through a list rely on them.
Status CheckPage(const objects::ListPage& page, const std::string& prefix,
                 const std::string& start_after, uint32_t limit) {
  if (page.objects.size() > limit) return Fail(WrongReply("a list longer than requested"));
  if (page.more && page.objects.empty()) {
    return Fail(WrongReply("an empty list that claims to have more entries"));
  }
  const std::string* last = &start_after;
  for (const objects::ObjectInfo& object : page.objects) {
    if (!objects::CheckKey(object.key) || !object.key.starts_with(prefix) || object.key <= *last) {
      return Fail(WrongReply("a list with a wrong key"));
    }
    last = &object.key;
  }
  return {};
}

}  // namespace

// Exclusive use of the channel, for the lifetime of the object.
class PipedStore::Turn {
 public:
  static Result<Turn> Wait(PipedStore& store, const CallOptions& call) {
    std::unique_lock lock(store.mutex_);
    const auto is_free = [&store] { return !store.busy_; };
    bool ours = false;
    if (call.deadline.never()) {
      ours = store.turn_ended_.wait(lock, call.stop, is_free);
    } else {
      const std::chrono::milliseconds left(call.deadline.PollTimeout());
      ours = store.turn_ended_.wait_for(lock, call.stop, left, is_free);
    }
    if (call.stop.stop_requested()) return Fail(Code::kCancelled, "cancelled");
    if (!ours || call.deadline.passed()) {
      return Fail(Code::kDeadlineExceeded, "the deadline has passed");
    }
    store.busy_ = true;
    return Turn(store);
  }
  Turn(Turn&& other) noexcept : store_(std::exchange(other.store_, nullptr)) {}
  Turn& operator=(Turn&&) = delete;
  ~Turn() {
    if (store_ == nullptr) return;
    const std::lock_guard lock(store_->mutex_);
    store_->busy_ = false;
    store_->turn_ended_.notify_all();
  }

 private:
  explicit Turn(PipedStore& store) : store_(&store) {}
  PipedStore* store_;
};

// Reads the reply to a request that was sent. Fails if the channel fails or the reply is invalid. A
// reply may contain an error of the other side's store.
Result<wire::ObjectReply> PipedStore::Exchange(const Request& request, const CallOptions& call) {
  STASIS_ASSIGN(const Frame frame,
                channel_.Receive({kMaxHeaderBytes, request.max_answer_bytes}, call));
  if (frame.type != static_cast<uint16_t>(ObjectMessage::kReply)) {
    return Fail(WrongReply("its type is " + std::to_string(frame.type)));
  }
  wire::ObjectReply reply;
  if (!reply.ParseFromString(frame.header)) return Fail(WrongReply("its header is damaged"));
  if (!reply.has_error() && request.read_answer) STASIS_TRY(request.read_answer());
  return reply;
}

// Errors name the object and the store.
Result<wire::ObjectReply> PipedStore::Ask(const Request& request, const CallOptions& call) {
  auto ask = [&]() -> Result<wire::ObjectReply> {
    STASIS_ASSIGN(const Turn turn, Turn::Wait(*this, call));
    CountRequest();
    const std::string header = request.header.SerializeAsString();
    STASIS_TRY(channel_.Send({static_cast<uint16_t>(request.type), header, request.payload}, call));
    auto reply = Exchange(request, call);
    // The reply may still arrive. The next call must not read it as its own reply.
    if (!reply) channel_.Break(reply.error());
    if (reply && reply->has_error()) {
      Error error = DecodeError(reply->error());
      error.not_undone = false;  // there may be changes on the other host, but none on this one
      return Fail(std::move(error));
    }
    return reply;
  };
  return Annotate(ask(), request.what + " of " + name_);
}

void PipedStore::CountRequest() {
  const std::lock_guard lock(mutex_);
  ++counters_.requests;
}

void PipedStore::CountBytes(uint64_t sent, uint64_t received) {
  const std::lock_guard lock(mutex_);
  counters_.bytes_sent += sent;
  counters_.bytes_received += received;
}

objects::Counters PipedStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

Status PipedStore::Put(const std::string& key, std::span<const std::string_view> parts,
                       const CallOptions& call) {
  STASIS_TRY(objects::CheckKey(key));
  Request request{"write " + key, ObjectMessage::kPut, {}, parts};
  request.header.set_key(key);
  STASIS_TRY(Ask(request, call));
  uint64_t bytes = 0;
  for (std::string_view part : parts) bytes += part.size();
  CountBytes(bytes, 0);
  return {};
}

Status PipedStore::Get(const std::string& key, uint64_t offset, uint64_t bytes, objects::Sink& sink,
                       const CallOptions& call) {
  STASIS_TRY(objects::CheckKey(key));
  if (bytes > kMaxPayloadBytes) {
    return Fail(Code::kOutOfRange, name_ + " has no object of " + std::to_string(bytes) + " bytes");
  }
  Status taken;
  Request request{"read " + key, ObjectMessage::kGet, {}, {}, bytes};
  request.header.set_key(key);
  request.header.set_offset(offset);
  request.header.set_bytes(bytes);
  request.read_answer = [&]() -> Status {
    if (channel_.payload_left() != bytes) return Fail(WrongReply("a range of the wrong length"));
    std::string buffer(std::min<uint64_t>(bytes, kBufferBytes), '\0');
    // The channel discards the rest after an error of the sink.
    while (taken && channel_.payload_left() > 0) {
      const std::span<char> piece(buffer.data(), std::min(channel_.payload_left(), buffer.size()));
      STASIS_TRY(channel_.ReadPayload(piece, call));
      taken = sink.Write({piece.data(), piece.size()});
    }
    return {};
  };
  STASIS_TRY(Ask(request, call));
  STASIS_TRY(std::move(taken));
  CountBytes(0, bytes);
  return {};
}

Result<std::string> PipedStore::GetWhole(const std::string& key, uint64_t max_bytes,
                                         const CallOptions& call) {
  STASIS_TRY(objects::CheckKey(key));
  std::string data;
  Request request{
      "read " + key, ObjectMessage::kGetWhole, {}, {}, std::min(max_bytes, kMaxPayloadBytes)};
  request.header.set_key(key);
  request.header.set_bytes(request.max_answer_bytes);
  request.read_answer = [&]() -> Status {
    STASIS_ASSIGN(data, channel_.ReadPayload(call));
    return {};
  };
  STASIS_TRY(Ask(request, call));
  CountBytes(0, data.size());
  return data;
}

Result<objects::ListPage> PipedStore::List(const std::string& prefix,
                                           const std::string& start_after, uint32_t limit,
                                           const CallOptions& call) {
  STASIS_TRY(objects::CheckListing(prefix, start_after, limit));
  Request request{"list " + prefix + "*", ObjectMessage::kList};
  request.header.set_key(prefix);
  request.header.set_start_after(start_after);
  request.header.set_limit(limit);
  STASIS_ASSIGN(const wire::ObjectReply reply, Ask(request, call));
  objects::ListPage page;
  page.more = reply.more();
  for (const wire::Object& object : reply.objects()) {
    page.objects.push_back({object.key(), object.bytes()});
    if (object.has_put_unix_s()) page.objects.back().put_unix_s = object.put_unix_s();
  }
  STASIS_TRY(Annotate(CheckPage(page, prefix, start_after, limit), name_));
  return page;
}

Status PipedStore::Delete(const std::string& key, const CallOptions& call) {
  STASIS_TRY(objects::CheckKey(key));
  Request request{"delete " + key, ObjectMessage::kDelete};
  request.header.set_key(key);
  STASIS_TRY(Ask(request, call));
  return {};
}

Result<uint64_t> PipedStore::RemoveLeftovers(std::chrono::seconds older_than,
                                             const CallOptions& call) {
  Request request{"remove leftovers", ObjectMessage::kRemoveLeftovers};
  request.header.set_older_than_s(static_cast<uint64_t>(std::max<int64_t>(older_than.count(), 0)));
  STASIS_ASSIGN(const wire::ObjectReply reply, Ask(request, call));
  return reply.removed();
}

}  // namespace stasis::migration
