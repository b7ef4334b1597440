// Reads the answers of an S3 server to successful requests; s3_error.h reads those to failed ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "objects/object_store.h"

namespace stasis::objects::s3 {

// Parses a decimal number without sign. Returns nullopt for anything else.
std::optional<uint64_t> ParseNumber(std::string_view text);

// Parses the header Content-Range of an answer that should have the bytes from `begin` to `end`.
// Returns the number of bytes, which is smaller if the object ends before `end`, or nullopt if the
// answer has another range.
std::optional<uint64_t> ParseContentRange(std::string_view text, uint64_t begin, uint64_t end);

// Parses one page of a list. `prefix` is empty or ends in a slash; it is removed from the keys.
// Objects whose keys are not valid (CheckKey) are left out. `last_key` is the full key after which
// the page begins. It is set to the last full key of the page, even if that object is left out.
// Returns kInvalidArgument if the document is not a list, or if its keys are not in order or not
// below `prefix`.
Result<ListPage> ParseList(std::string_view document, const std::string& prefix,
                           std::string* last_key);

}  // namespace stasis::objects::s3
