#include "objects/location.h"

#include "objects/folder_store.h"
#include "objects/object_key.h"
#include "objects/printable.h"

namespace stasis::objects {
namespace {

constexpr std::string_view kScheme = "s3://";
// A prefix and a key of the maximum length together fit into an S3 key, which has at most 1024
// bytes.
constexpr size_t kMaxPrefixBytes = 400;
constexpr size_t kMaxPathBytes = 3000;
constexpr char kForms[] = "write s3://BUCKET/PREFIX or the absolute path of a folder";

std::string WithoutEndSlashes(std::string text) {
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

tl::unexpected<Error> Wrong(const std::string& text, const std::string& why) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, "\"" + Printable(text) + "\" " + why,
              kForms);
}

Result<Location> ParseS3(const std::string& text) {
  const std::string rest = text.substr(kScheme.size());
  const size_t slash = rest.find('/');
  Location location;
  location.kind = Location::Kind::kS3;
  location.bucket = rest.substr(0, slash);
  if (location.bucket.empty()) return Wrong(text, "names no bucket");
  if (slash == rest.npos) return location;
  location.prefix = WithoutEndSlashes(rest.substr(slash + 1));
  if (location.prefix.empty() || location.prefix == "/") {
    location.prefix.clear();
    return location;
  }
  if (location.prefix.size() > kMaxPrefixBytes) return Wrong(text, "has too long a prefix");
  if (!CheckKey(location.prefix)) {
    return Wrong(text,
                 "has a prefix with characters other than A-Z a-z 0-9 . _ - /, or with an "
                 "empty component, \".\" or \"..\"");
  }
  return location;
}

}  // namespace

std::string Location::ToString() const {
  if (kind == Kind::kFolder) return folder;
  return std::string(kScheme) + bucket + (prefix.empty() ? "" : '/' + prefix);
}

Result<Location> ParseLocation(const std::string& text) {
  if (text.starts_with(kScheme)) return ParseS3(text);
  if (!text.starts_with('/')) return Wrong(text, "is neither an S3 location nor an absolute path");
  if (text.size() > kMaxPathBytes) return Wrong(text, "is too long");
  if (text.find('\0') != text.npos) return Wrong(text, "contains a zero byte");
  Location location;
  location.folder = WithoutEndSlashes(text);
  return location;
}

Result<std::unique_ptr<ObjectStore>> OpenObjectStore(const Location& location,
                                                     const s3::S3Options& options) {
  if (location.kind == Location::Kind::kFolder) {
    STASIS_ASSIGN(auto store, FolderStore::Open(location.folder));
    return std::unique_ptr<ObjectStore>(std::move(store));
  }
  STASIS_ASSIGN(auto store, s3::S3Store::Open(location.bucket, location.prefix, options));
  return std::unique_ptr<ObjectStore>(std::move(store));
}

}  // namespace stasis::objects
