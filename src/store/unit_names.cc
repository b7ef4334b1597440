#include "store/unit_names.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <memory>

namespace stasis::store {

UnitNames::UnitNames(const BlockSecret& secret)
    : key_(secret),
      aes_key_(HmacSha256({reinterpret_cast<const char*>(secret.data()), secret.size()},
                          "stasis unit names: AES-256 key")) {
  // Do not read OpenSSL's configuration file, which could load other libraries into this process.
  (void)::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
}

Status UnitNames::Encrypt(std::span<Id128> hashes) const {
  static_assert(sizeof(Id128) == Id128::kBytes && sizeof(Sha256Digest) == 32);
  if (hashes.empty()) return {};
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> context(
      ::EVP_CIPHER_CTX_new(), ::EVP_CIPHER_CTX_free);
  auto* bytes = hashes.data()->bytes.data();
  const int size = static_cast<int>(hashes.size_bytes());
  int done = 0;
  // Each hash is one block of the cipher, so ECB is AES itself.
  if (context != nullptr &&
      ::EVP_EncryptInit_ex(context.get(), ::EVP_aes_256_ecb(), nullptr, aes_key_.data(), nullptr) ==
          1 &&
      ::EVP_CIPHER_CTX_set_padding(context.get(), 0) == 1 &&
      ::EVP_EncryptUpdate(context.get(), bytes, &done, bytes, size) == 1 && done == size) {
    return {};
  }
  return Fail(Code::kInternal, "OpenSSL cannot encrypt with AES-256");
}

Result<Id128> UnitNames::NameOf(std::string_view unit) const {
  Id128 name = key_.Hash(unit);
  STASIS_TRY(Encrypt({&name, 1}));
  return name;
}

}  // namespace stasis::store
