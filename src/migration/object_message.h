// Types of the messages of object_message.proto, and their errors.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "migration/object_message.pb.h"

namespace stasis::migration {

// Types of the frames that carry object messages. Messages of other kinds use other numbers.
enum class ObjectMessage : uint16_t {
  kPut = 1,  // payload: the object
  kGet = 2,
  kGetWhole = 3,
  kList = 4,
  kDelete = 5,
  kRemoveLeftovers = 6,
  kReply = 7,  // the reply to each of these; payload: the bytes that Get and GetWhole asked for
};

// Texts are shortened to a few KiB.
wire::Error EncodeError(const Error& error);
// An unknown code becomes kUnknown, an unknown domain kStasis. Control characters are removed from
// texts, which may be printed on a terminal.
Error DecodeError(const wire::Error& message);

}  // namespace stasis::migration
