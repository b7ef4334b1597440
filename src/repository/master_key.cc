#include "repository/master_key.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "base/sha256.h"

namespace stasis::repository {
namespace {

constexpr std::string_view kPackLabel = "stasis repository: pack key 1";
constexpr std::string_view kObjectLabel = "stasis repository: object key 1";
constexpr std::string_view kNamesLabel = "stasis repository: names 1";
constexpr std::string_view kIdLabel = "stasis repository: key id 1";

std::string InfoOf(std::string_view label, const Id128& id) {
  std::string info(label);
  info += id.View();
  return info;
}

}  // namespace

SecretBytes::~SecretBytes() { ::OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

SecretBytes Hkdf(std::string_view secret, std::string_view info) {
  const std::string no_salt(kKeyBytes, '\0');
  Sha256Digest extracted = HmacSha256(no_salt, secret);
  // One block of the expansion is enough, because the result has the length of one block.
  Sha256Digest expanded = HmacSha256(View(extracted), std::string(info) + '\x01');
  SecretBytes key;
  std::copy(expanded.begin(), expanded.end(), key.data());
  ::OPENSSL_cleanse(extracted.data(), extracted.size());
  ::OPENSSL_cleanse(expanded.data(), expanded.size());
  return key;
}

MasterKey::MasterKey(const SecretBytes& bytes)
    : bytes_(bytes), id_(Id128::FromRaw(HmacSha256(bytes.View(), kIdLabel).data())) {}

Result<MasterKey> MasterKey::Random() {
  SecretBytes bytes;
  if (::getrandom(bytes.data(), kKeyBytes, 0) != static_cast<ssize_t>(kKeyBytes)) {
    return FailErrno(errno, "read random numbers");
  }
  return MasterKey(bytes);
}

SecretBytes MasterKey::PackKey(const Id128& pack) const {
  return Hkdf(bytes_.View(), InfoOf(kPackLabel, pack));
}

SecretBytes MasterKey::ObjectKey(const Id128& object) const {
  return Hkdf(bytes_.View(), InfoOf(kObjectLabel, object));
}

BlockSecret MasterKey::NamingSecret() const {
  const SecretBytes derived = Hkdf(bytes_.View(), kNamesLabel);
  BlockSecret secret;
  static_assert(std::tuple_size_v<BlockSecret> == kKeyBytes);
  std::copy_n(derived.data(), kKeyBytes, secret.begin());
  return secret;
}

}  // namespace stasis::repository
