// The messages of a migration (proto/stasis/v1/migration.proto) on the channel between both hosts.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "migration/channel.h"
#include "objects/object_store.h"
#include "stasis/v1/migration.pb.h"

namespace stasis::api {

// The numbers are part of the protocol. Never change the meaning of one.
enum class MessageKind : uint16_t {
  kBegin = 100,    // MigrationBegin
  kBegun = 101,    // MigrationBegun; also the answer to kCheck
  kCheck = 102,    // MigrationCheck
  kRestore = 103,  // MigrationRestore
  kLoad = 104,     // MigrationLoad
  kReady = 105,    // MigrationBegun: the program is complete and waits
  kGo = 106,       // MigrationBegun: let the program run
  kDone = 107,     // OperationEvent with the result: the program runs
  kFailed = 108,   // MigrationFailed, the answer to any request
  kLoaded = 109,   // MigrationLoaded, the answer to kLoad
};

// Not thread-safe: one call at a time, and none while PipedStore uses the channel.
class MigrationLink {
 public:
  // Exchanges greetings with the other side.
  static Result<std::unique_ptr<MigrationLink>> Open(UniqueFd input, UniqueFd output,
                                                     const objects::CallOptions& limits);

  migration::Channel& channel() { return *channel_; }

  Status Send(MessageKind kind, const google::protobuf::MessageLite& message,
              const objects::CallOptions& limits);
  // Receives a message of kind `kind`. If a kFailed message arrives instead, returns the error in
  // it.
  Status Await(MessageKind kind, google::protobuf::MessageLite& answer,
               const objects::CallOptions& limits);
  Status Ask(MessageKind kind, const google::protobuf::MessageLite& message,
             MessageKind answer_kind, google::protobuf::MessageLite& answer,
             const objects::CallOptions& limits) {
    STASIS_TRY(Send(kind, message, limits));
    return Await(answer_kind, answer, limits);
  }
  // After an error of Await(): returns true if the other side has reported that it failed and that
  // the program is not running there.
  bool refused() const { return refused_; }

 private:
  explicit MigrationLink(std::unique_ptr<migration::Channel> channel)
      : channel_(std::move(channel)) {}

  std::unique_ptr<migration::Channel> channel_;
  bool refused_ = false;
};

// Decodes the header of a frame; returns kInvalidArgument if the header is not a message of that
// type.
Status ParseMessage(const migration::Frame& frame, google::protobuf::MessageLite& message);

}  // namespace stasis::api
