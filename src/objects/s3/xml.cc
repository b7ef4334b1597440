#include "objects/s3/xml.h"

#include <expat.h>

#include <memory>

namespace stasis::objects::s3 {
namespace {

constexpr size_t kMaxBytes = 8u << 20;
constexpr size_t kMaxElements = 40'000;
constexpr size_t kMaxDepth = 16;

// Builds the tree. `path` points to the elements that are open: only the last one's children grow,
// so the pointers stay valid.
struct Builder {
  XML_Parser parser = nullptr;
  XmlElement top;  // its only child is the root
  std::vector<XmlElement*> path{&top};
  size_t elements = 0;
  const char* refused = nullptr;

  void Refuse(const char* why) {
    refused = why;
    XML_StopParser(parser, XML_FALSE);
  }
};

Builder& Of(void* data) { return *static_cast<Builder*>(data); }

void OnStart(void* data, const XML_Char* name, const XML_Char**) {
  Builder& builder = Of(data);
  if (builder.refused != nullptr) return;
  if (++builder.elements > kMaxElements) return builder.Refuse("it has too many elements");
  if (builder.path.size() > kMaxDepth) return builder.Refuse("it is nested too deeply");
  std::string_view local = name;
  if (const size_t colon = local.rfind(':'); colon != local.npos) local.remove_prefix(colon + 1);
  auto& siblings = builder.path.back()->children;
  siblings.push_back({std::string(local), {}, {}});
  builder.path.push_back(&siblings.back());
}

void OnEnd(void* data, const XML_Char*) {
  Builder& builder = Of(data);
  if (builder.refused == nullptr) builder.path.pop_back();
}

void OnText(void* data, const XML_Char* text, int size) {
  Of(data).path.back()->text.append(text, static_cast<size_t>(size));
}

void OnDoctype(void* data, const XML_Char*, const XML_Char*, const XML_Char*, int) {
  Of(data).Refuse("it has a DTD");
}

tl::unexpected<Error> Wrong(const std::string& why) {
  return Fail(Code::kInvalidArgument, "the XML document cannot be used: " + why);
}

}  // namespace

const XmlElement* XmlElement::Find(std::string_view child) const {
  for (const XmlElement& element : children) {
    if (element.name == child) return &element;
  }
  return nullptr;
}

std::string XmlElement::TextOf(std::string_view child) const {
  const XmlElement* element = Find(child);
  return element == nullptr ? std::string() : element->text;
}

Result<XmlElement> ParseXml(std::string_view document) {
  if (document.size() > kMaxBytes) return Wrong("it is too long");
  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser(XML_ParserCreate(nullptr),
                                                                       XML_ParserFree);
  if (!parser) return Fail(Code::kResourceExhausted, "out of memory for an XML parser");
  Builder builder;
  builder.parser = parser.get();
  XML_SetUserData(parser.get(), &builder);
  XML_SetElementHandler(parser.get(), OnStart, OnEnd);
  XML_SetCharacterDataHandler(parser.get(), OnText);
  XML_SetStartDoctypeDeclHandler(parser.get(), OnDoctype);
  const XML_Status status =
      XML_Parse(parser.get(), document.data(), static_cast<int>(document.size()), 1);
  if (builder.refused != nullptr) return Wrong(builder.refused);
  if (status != XML_STATUS_OK) return Wrong(XML_ErrorString(XML_GetErrorCode(parser.get())));
  return std::move(builder.top.children.front());
}

}  // namespace stasis::objects::s3
