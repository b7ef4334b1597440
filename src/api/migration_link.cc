#include "api/migration_link.h"

#include <fmt/format.h>

#include "api/error_message.h"

namespace stasis::api {

Status ParseMessage(const migration::Frame& frame, google::protobuf::MessageLite& message) {
  if (message.ParseFromString(frame.header)) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("the other host sent a damaged message of type {}", frame.type));
}

Result<std::unique_ptr<MigrationLink>> MigrationLink::Open(UniqueFd input, UniqueFd output,
                                                           const objects::CallOptions& limits) {
  STASIS_ASSIGN(auto channel,
                migration::Channel::Open(std::move(input), std::move(output), limits));
  return std::unique_ptr<MigrationLink>(new MigrationLink(std::move(channel)));
}

Status MigrationLink::Send(MessageKind kind, const google::protobuf::MessageLite& message,
                           const objects::CallOptions& limits) {
  const std::string text = message.SerializeAsString();
  return channel_->Send({static_cast<uint16_t>(kind), text, {}}, limits);
}

Status MigrationLink::Await(MessageKind kind, google::protobuf::MessageLite& answer,
                            const objects::CallOptions& limits) {
  STASIS_ASSIGN(const migration::Frame frame, channel_->Receive({}, limits));
  const auto got = static_cast<MessageKind>(frame.type);
  if (got == kind) return ParseMessage(frame, answer);
  if (got != MessageKind::kFailed) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the other host sent a message of type {} instead of {}", frame.type,
                            static_cast<uint16_t>(kind)));
  }
  v1::MigrationFailed failed;
  STASIS_TRY(ParseMessage(frame, failed));
  refused_ = !failed.may_run();
  Error error = DecodeError(failed.error());
  // `not_undone` in the other host's error means that changes are left on that host. None are left
  // on this host.
  error.not_undone = false;
  return Fail(std::move(error));
}

}  // namespace stasis::api
