// An object store on the other side of a channel, where ServeObjectRequest() answers the requests.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "migration/channel.h"
#include "migration/object_message.h"
#include "objects/object_store.h"

namespace stasis::migration {

// One call at a time uses the channel; others wait for their turn, within their limits. If a call
// ends after it has begun to send its request, because of an error of the channel, a deadline or a
// stop, it breaks the channel: later calls return kUnavailable. Errors of the other side's store do
// not break the channel.
//
// Objects and ranges have at most kMaxPayloadBytes (kOutOfRange otherwise). The sink of Get() must
// not use this store.
class PipedStore final : public objects::ObjectStore {
 public:
  // `channel` must outlive this object, and nothing else may use it during a call. `name` is the
  // name for messages: "host:/folder".
  PipedStore(Channel& channel, std::string name) : channel_(channel), name_(std::move(name)) {}

  Status Put(const std::string& key, std::span<const std::string_view> parts,
             const objects::CallOptions& call = {}) override;
  Status Get(const std::string& key, uint64_t offset, uint64_t bytes, objects::Sink& sink,
             const objects::CallOptions& call = {}) override;
  Result<std::string> GetWhole(const std::string& key, uint64_t max_bytes,
                               const objects::CallOptions& call = {}) override;
  Result<objects::ListPage> List(const std::string& prefix, const std::string& start_after,
                                 uint32_t limit, const objects::CallOptions& call = {}) override;
  Status Delete(const std::string& key, const objects::CallOptions& call = {}) override;
  Result<uint64_t> RemoveLeftovers(std::chrono::seconds older_than,
                                   const objects::CallOptions& call = {}) override;
  std::string Name() const override { return name_; }
  objects::Counters counters() const override;

 private:
  struct Request {
    std::string what;  // for messages: "read packs/a"
    ObjectMessage type;
    wire::ObjectRequest header;
    std::span<const std::string_view> payload;
    uint64_t max_answer_bytes = 0;  // of the reply's payload
    // Reads the payload of a successful reply. Returns errors of the channel only.
    std::function<Status()> read_answer;
  };
  class Turn;

  Result<wire::ObjectReply> Ask(const Request& request, const objects::CallOptions& call);
  Result<wire::ObjectReply> Exchange(const Request& request, const objects::CallOptions& call);
  void CountRequest();
  void CountBytes(uint64_t sent, uint64_t received);

  Channel& channel_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable_any turn_ended_;
  bool busy_ = false;  // a call uses the channel
  objects::Counters counters_;
};

}  // namespace stasis::migration
