#include "migration/store_server.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "migration/object_message.h"
#include "objects/object_key.h"

namespace stasis::migration {
namespace {

using objects::CallOptions;

constexpr uint64_t kMaxAgeSeconds = 1ull << 32;

struct Answer {
  wire::ObjectReply header;
  std::string payload;
};

struct Work {
  objects::ObjectStore& store;
  Channel& channel;
  const wire::ObjectRequest& request;
  const CallOptions& call;
};

// Collects a range. Allocates its memory when the first bytes show that the object has the range.
class RangeSink : public objects::Sink {
 public:
  RangeSink(std::string& data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  Status Write(std::string_view part) override {
    data_.reserve(bytes_);
    data_ += part;
    return {};
  }
  uint64_t Rewind() override { return data_.size(); }

 private:
  std::string& data_;
  const uint64_t bytes_;
};

// Keeps the object in the pieces in which it was read, which saves a copy.
Result<Answer> Put(const Work& work) {
  STASIS_TRY(objects::CheckKey(work.request.key()));
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<std::string_view> parts;
  while (work.channel.payload_left() > 0) {
    const size_t step = std::min(work.channel.payload_left(), kStepBytes);
    memory.push_back(std::make_unique_for_overwrite<char[]>(step));
    STASIS_TRY(work.channel.ReadPayload({memory.back().get(), step}, work.call));
    parts.emplace_back(memory.back().get(), step);
  }
  STASIS_TRY(work.store.Put(work.request.key(), parts, work.call));
  return Answer{};
}

Result<Answer> Get(const Work& work) {
  const uint64_t bytes = work.request.bytes();
  STASIS_TRY(objects::CheckKey(work.request.key()));
  if (bytes > kMaxPayloadBytes) {
    return Fail(Code::kOutOfRange, "a range of " + std::to_string(bytes) + " bytes is too long");
  }
  Answer answer;
  RangeSink sink(answer.payload, bytes);
  STASIS_TRY(work.store.Get(work.request.key(), work.request.offset(), bytes, sink, work.call));
  return answer;
}

Result<Answer> GetWhole(const Work& work) {
  STASIS_TRY(objects::CheckKey(work.request.key()));
  const uint64_t most = std::min(work.request.bytes(), kMaxPayloadBytes);
  Answer answer;
  STASIS_ASSIGN(answer.payload, work.store.GetWhole(work.request.key(), most, work.call));
  return answer;
}

Result<Answer> List(const Work& work) {
  const wire::ObjectRequest& request = work.request;
  STASIS_TRY(objects::CheckListing(request.key(), request.start_after(), request.limit()));
  STASIS_ASSIGN(const objects::ListPage page,
                work.store.List(request.key(), request.start_after(), request.limit(), work.call));
  Answer answer;
  answer.header.set_more(page.more);
  for (const objects::ObjectInfo& info : page.objects) {
    wire::Object* object = answer.header.add_objects();
    object->set_key(info.key);
    object->set_bytes(info.bytes);
    if (info.put_unix_s) object->set_put_unix_s(*info.put_unix_s);
  }
  return answer;
}

Result<Answer> Delete(const Work& work) {
  STASIS_TRY(objects::CheckKey(work.request.key()));
  STASIS_TRY(work.store.Delete(work.request.key(), work.call));
  return Answer{};
}

Result<Answer> RemoveLeftovers(const Work& work) {
  const std::chrono::seconds age(std::min(work.request.older_than_s(), kMaxAgeSeconds));
  Answer answer;
  STASIS_ASSIGN(const uint64_t removed, work.store.RemoveLeftovers(age, work.call));
  answer.header.set_removed(removed);
  return answer;
}

struct Handler {
  ObjectMessage type;
  Result<Answer> (*handle)(const Work& work);
};

constexpr Handler kHandlers[] = {
    {ObjectMessage::kPut, Put},           {ObjectMessage::kGet, Get},
    {ObjectMessage::kGetWhole, GetWhole}, {ObjectMessage::kList, List},
    {ObjectMessage::kDelete, Delete},     {ObjectMessage::kRemoveLeftovers, RemoveLeftovers},
};

Result<Answer> Handle(const Handler& handler, objects::ObjectStore& store, const Frame& frame,
                      Channel& channel, const CallOptions& call) {
  wire::ObjectRequest request;
  if (!request.ParseFromString(frame.header)) {
    return Fail(Code::kInvalidArgument, "the header of a request is damaged");
  }
  if (handler.type != ObjectMessage::kPut && frame.payload_bytes > 0) {
    return Fail(Code::kInvalidArgument, "a request other than Put has a payload");
  }
  return handler.handle({store, channel, request, call});
}

}  // namespace

Result<bool> ServeObjectRequest(objects::ObjectStore& store, const Frame& frame, Channel& channel,
                                const CallOptions& call) {
  const auto* handler = std::find_if(
      std::begin(kHandlers), std::end(kHandlers),
      [&](const Handler& known) { return static_cast<uint16_t>(known.type) == frame.type; });
  if (handler == std::end(kHandlers)) return false;
  auto handled = Handle(*handler, store, frame, channel, call);
  Answer answer;
  if (handled) {
    answer = std::move(*handled);
  } else {
    // If this error came from the channel, the channel is broken, and Send() below returns the
    // error.
    *answer.header.mutable_error() = EncodeError(handled.error());
  }
  const std::string header = answer.header.SerializeAsString();
  const std::string_view payload[] = {answer.payload};
  STASIS_TRY(channel.Send({static_cast<uint16_t>(ObjectMessage::kReply), header, payload}, call));
  return true;
}

}  // namespace stasis::migration
