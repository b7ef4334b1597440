// Parses the small XML documents that S3 and STS answer with. Their size is bounded, and DTDs are
// rejected.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stasis::objects::s3 {

struct XmlElement {
  std::string name;  // without a namespace prefix
  std::string text;  // of this element alone
  std::vector<XmlElement> children;

  // Returns the first child with this name, or nullptr.
  const XmlElement* Find(std::string_view child) const;
  // Returns the text of the first child with this name, or an empty string.
  std::string TextOf(std::string_view child) const;
};

// Returns the root element. Returns kInvalidArgument for a document that is not well-formed, has a
// DTD, or has more than 16 levels, 40,000 elements or 8 MiB.
Result<XmlElement> ParseXml(std::string_view document);

}  // namespace stasis::objects::s3
