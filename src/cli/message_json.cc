#include "cli/message_json.h"

#include <google/protobuf/descriptor.h>

namespace stasis::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Reads a single field, or with `index` one element of a repeated one.
nlohmann::json Value(const Message& message, const FieldDescriptor* field, int index = -1) {
  const google::protobuf::Reflection& fields = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? fields.GetBool(message, field) : fields.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? fields.GetInt32(message, field) : fields.GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? fields.GetUInt32(message, field)
                 : fields.GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? fields.GetInt64(message, field) : fields.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? fields.GetUInt64(message, field)
                 : fields.GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? fields.GetDouble(message, field)
                 : fields.GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? fields.GetString(message, field)
                 : fields.GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(one ? fields.GetMessage(message, field)
                             : fields.GetRepeatedMessage(message, field, index));
    default:
      return nullptr;  // the API has no other types
  }
}

}  // namespace

nlohmann::json MessageJson(const Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& fields = *message.GetReflection();
  auto document = nlohmann::json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    auto& value = document[field->name()];
    if (field->is_repeated()) {
      value = nlohmann::json::array();
      for (int at = 0; at < fields.FieldSize(message, field); ++at) {
        value.push_back(Value(message, field, at));
      }
    } else if (!field->has_presence() || fields.HasField(message, field)) {
      value = Value(message, field);
    }
  }
  return document;
}

}  // namespace stasis::cli
