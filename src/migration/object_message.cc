#include "migration/object_message.h"

#include "objects/printable.h"

namespace stasis::migration {
namespace {

constexpr size_t kMaxTextBytes = 4096;

}  // namespace

wire::Error EncodeError(const Error& error) {
  wire::Error message;
  message.set_code(static_cast<uint32_t>(error.code));
  message.set_domain(static_cast<uint32_t>(error.domain));
  message.set_raw(error.raw);
  message.set_message(error.ToString().substr(0, kMaxTextBytes));
  message.set_hint(error.hint.substr(0, kMaxTextBytes));
  message.set_not_undone(error.not_undone);
  return message;
}

Error DecodeError(const wire::Error& message) {
  Error error;
  if (message.code() > 0 && message.code() <= static_cast<uint32_t>(Code::kDataLoss)) {
    error.code = static_cast<Code>(message.code());
  }
  if (message.domain() <= static_cast<uint32_t>(Domain::kUsage)) {
    error.domain = static_cast<Domain>(message.domain());
  }
  error.raw = message.raw();
  error.message = objects::Printable(message.message(), kMaxTextBytes);
  error.hint = objects::Printable(message.hint(), kMaxTextBytes);
  error.not_undone = message.not_undone();
  return error;
}

}  // namespace stasis::migration
