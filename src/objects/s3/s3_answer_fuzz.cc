// Fuzzes the readers of an S3 server's answers. An accepted list has valid keys in order. An error
// becomes a message of one line. An accepted range lies within the requested one.
#include "objects/s3/s3_answer.h"

#include <algorithm>

#include "base/fuzz_input.h"
#include "objects/object_key.h"
#include "objects/s3/s3_error.h"

namespace stasis::objects::s3 {
namespace {

void ReadList(std::string_view document, const std::string& prefix) {
  const std::string start = prefix + "a";
  std::string last = start;
  const auto page = ParseList(document, prefix, &last);
  FuzzCheck(last >= start);
  if (!page) return;
  const std::string* before = nullptr;
  for (const ObjectInfo& object : page->objects) {
    FuzzCheck(CheckKey(object.key).has_value());
    FuzzCheck(before == nullptr ? prefix + object.key > start : object.key > *before);
    before = &object.key;
  }
  FuzzCheck(before == nullptr || prefix + *before <= last);
}

void ReadError(std::string_view text) {
  for (const long status : {301L, 403L, 404L, 500L}) {
    HttpAnswer answer;
    answer.status = status;
    answer.body = text;
    answer.headers["date"] = answer.headers["x-amz-bucket-region"] = text.substr(0, 100);
    const S3Failure failure = Interpret(answer, {"s3://b/k", "b", "r", "https://e", "id", "fuzz"});
    const std::string& message = failure.error.message;
    FuzzCheck(!message.empty() && message.size() < 2000);
    FuzzCheck(std::none_of(message.begin(), message.end(),
                           [](char c) { return static_cast<unsigned char>(c) < ' '; }));
    FuzzCheck(failure.error.code != Code::kOk);
  }
}

void ReadRange(FuzzInput input) {
  const auto begin = input.Number<uint64_t>();
  const auto end = input.Number<uint64_t>();
  if (begin >= end) return;
  const auto bytes = ParseContentRange(input.Bytes(SIZE_MAX), begin, end);
  FuzzCheck(!bytes || (*bytes > 0 && *bytes <= end - begin));
}

}  // namespace
}  // namespace stasis::objects::s3

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::objects::s3;  // NOLINT(google-build-using-namespace)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadList(text, "");
  ReadList(text, "p/");
  ReadError(text);
  ReadRange({data, size});
  return 0;
}
