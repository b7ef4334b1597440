#include "repository/seal.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/erase.h"
#include "base/little_endian.h"

namespace stasis::repository {
namespace {

constexpr size_t kNonceBytes = 12;
constexpr std::string_view kUnitLabel = "stasis unit 1";
constexpr std::string_view kSealMagic = "stsl";
constexpr uint32_t kSealVersion = 1;
constexpr std::string_view kKnownPurpose = "known text";
constexpr std::string_view kKnownText = "the master key of this repository";

Error CipherError() {
  return Error{.code = Code::kInternal, .message = "OpenSSL cannot use AES-256-GCM"};
}

std::string UnitAssociated(const Id128& pack, uint64_t plain_bytes) {
  std::string associated(kUnitLabel);
  associated += pack.View();
  AppendNumber(associated, plain_bytes);
  return associated;
}

Status CheckLength(uint64_t plain_bytes) {
  if (plain_bytes > 0 && plain_bytes <= kMaxSealedBytes) return {};
  return Fail(Code::kInvalidArgument,
              fmt::format("a unit of {} bytes cannot be encrypted", plain_bytes));
}

}  // namespace

// AES-256-GCM with one key and a reused context. Private to this file, because callers must never
// use a number twice.
class Gcm {
 public:
  enum class Direction : uint8_t { kEncrypt, kDecrypt };
  static Result<std::unique_ptr<Gcm>> Create(Direction direction, const SecretBytes& key);

  // Begins a text, and abandons an unfinished one.
  Status Begin(uint64_t number, std::string_view associated);
  // Encrypts or decrypts the next bytes, at most kMaxSealedBytes.
  Status Update(std::string_view in, char* out);
  // Writes the tag of 16 bytes. Only for kEncrypt.
  Status Finish(char* tag);
  // Returns true if `tag` matches the text and the associated data. Only for kDecrypt.
  bool Verify(std::string_view tag);

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { ::EVP_CIPHER_CTX_free(context); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_{::EVP_CIPHER_CTX_new()};
};

Result<std::unique_ptr<Gcm>> Gcm::Create(Direction direction, const SecretBytes& key) {
  // Do not read OpenSSL's configuration file, which could load other libraries into this process.
  (void)::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  auto gcm = std::make_unique<Gcm>();
  if (gcm->context_ != nullptr &&
      ::EVP_CipherInit_ex(gcm->context_.get(), ::EVP_aes_256_gcm(), nullptr, key.data(), nullptr,
                          direction == Direction::kEncrypt ? 1 : 0) == 1) {
    return gcm;
  }
  return Fail(CipherError());
}

Status Gcm::Begin(uint64_t number, std::string_view associated) {
  std::array<uint8_t, kNonceBytes> nonce{};
  std::memcpy(nonce.data() + kNonceBytes - sizeof number, &number, sizeof number);
  int done = 0;
  // The argument -1 keeps the direction (encrypt or decrypt).
  if (::EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
      ::EVP_CipherUpdate(context_.get(), nullptr, &done,
                         reinterpret_cast<const unsigned char*>(associated.data()),
                         static_cast<int>(associated.size())) == 1) {
    return {};
  }
  return Fail(CipherError());
}

Status Gcm::Update(std::string_view in, char* out) {
  assert(in.size() <= kMaxSealedBytes);
  if (in.empty()) return {};
  int done = 0;
  if (::EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(out), &done,
                         reinterpret_cast<const unsigned char*>(in.data()),
                         static_cast<int>(in.size())) == 1 &&
      static_cast<size_t>(done) == in.size()) {
    return {};
  }
  return Fail(CipherError());
}

Status Gcm::Finish(char* tag) {
  unsigned char rest[1];
  int done = 0;
  if (::EVP_CipherFinal_ex(context_.get(), rest, &done) == 1 && done == 0 &&
      ::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kSealTagBytes, tag) == 1) {
    return {};
  }
  return Fail(CipherError());
}

bool Gcm::Verify(std::string_view tag) {
  assert(tag.size() == kSealTagBytes);
  std::array<char, kSealTagBytes> copy;  // the parameter is not const
  std::copy_n(tag.data(), kSealTagBytes, copy.begin());
  unsigned char rest[1];
  int done = 0;
  return ::EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kSealTagBytes, copy.data()) ==
             1 &&
         ::EVP_CipherFinal_ex(context_.get(), rest, &done) == 1 && done == 0;
}

PackSealer::PackSealer(const Id128& pack, std::unique_ptr<Gcm> gcm)
    : pack_(pack), gcm_(std::move(gcm)) {}
PackSealer::PackSealer(PackSealer&&) noexcept = default;
PackSealer::~PackSealer() = default;

Result<PackSealer> PackSealer::Create(const MasterKey& master) {
  STASIS_ASSIGN(const Id128 pack, Id128::Random());
  STASIS_ASSIGN(auto gcm, Gcm::Create(Gcm::Direction::kEncrypt, master.PackKey(pack)));
  return PackSealer(pack, std::move(gcm));
}

Result<uint64_t> PackSealer::Begin(uint64_t plain_bytes) {
  STASIS_TRY(CheckLength(plain_bytes));
  const uint64_t number = next_++;
  STASIS_TRY(gcm_->Begin(number, UnitAssociated(pack_, plain_bytes)));
  missing_bytes_ = plain_bytes;
  begun_ = true;
  return number;
}

Status PackSealer::Add(std::string_view plain, char* sealed) {
  if (!begun_ || plain.size() > missing_bytes_) {
    return Fail(Code::kInternal, "more bytes are to be encrypted than the unit has");
  }
  missing_bytes_ -= plain.size();
  return gcm_->Update(plain, sealed);
}

Status PackSealer::Finish(char* tag) {
  if (!begun_ || missing_bytes_ > 0) {
    return Fail(Code::kInternal, "fewer bytes were encrypted than the unit has");
  }
  begun_ = false;
  return gcm_->Finish(tag);
}

Result<uint64_t> PackSealer::Seal(std::string_view plain, char* sealed) {
  STASIS_ASSIGN(const uint64_t number, Begin(plain.size()));
  STASIS_TRY(Add(plain, sealed));
  STASIS_TRY(Finish(sealed + plain.size()));
  return number;
}

PackOpener::PackOpener(const Id128& pack, std::unique_ptr<Gcm> gcm)
    : pack_(pack), gcm_(std::move(gcm)) {}
PackOpener::PackOpener(PackOpener&&) noexcept = default;
PackOpener::~PackOpener() = default;

Result<PackOpener> PackOpener::Create(const MasterKey& master, const Id128& pack) {
  STASIS_ASSIGN(auto gcm, Gcm::Create(Gcm::Direction::kDecrypt, master.PackKey(pack)));
  return PackOpener(pack, std::move(gcm));
}

// Rejects the unit. Clears the decrypted bytes, so that none of them can be mistaken for data.
tl::unexpected<Error> PackOpener::Refuse(const std::string& why) {
  std::fill(plain_.begin(), plain_.end(), '\0');
  begun_ = false;
  return Fail(Code::kDataLoss, fmt::format("unit {} of pack {} {}", number_, pack_.Hex(), why));
}

Status PackOpener::Begin(uint64_t number, std::span<char> plain) {
  begun_ = false;
  STASIS_TRY(CheckLength(plain.size()));
  STASIS_TRY(gcm_->Begin(number, UnitAssociated(pack_, plain.size())));
  number_ = number;
  plain_ = plain;
  taken_ = 0;
  begun_ = true;
  return {};
}

uint64_t PackOpener::missing() const {
  return begun_ ? SealedUnitBytes(plain_.size()) - taken_ : 0;
}

Status PackOpener::Add(std::string_view sealed) {
  if (sealed.size() > missing()) {
    return Fail(Code::kInternal, "more bytes are to be decrypted than the unit has");
  }
  if (taken_ < plain_.size()) {
    const std::string_view data = sealed.substr(0, plain_.size() - taken_);
    STASIS_TRY(gcm_->Update(data, plain_.data() + taken_));
    taken_ += data.size();
    sealed.remove_prefix(data.size());
  }
  if (sealed.empty()) return {};
  std::copy(sealed.begin(), sealed.end(), tag_.data() + (taken_ - plain_.size()));
  taken_ += sealed.size();
  return {};
}

Status PackOpener::Finish() {
  if (!begun_) return Fail(Code::kInternal, "there is no unit to verify");
  if (missing() > 0) return Refuse(fmt::format("is truncated: {} bytes are missing", missing()));
  if (!gcm_->Verify({tag_.data(), tag_.size()})) {
    return Refuse("is not the one that was encrypted: it was changed or replaced");
  }
  begun_ = false;
  return {};
}

Status PackOpener::Open(uint64_t number, std::string_view sealed, std::span<char> plain) {
  STASIS_TRY(Begin(number, plain));
  if (sealed.size() > missing()) {
    return Refuse(fmt::format("has {} bytes instead of {}", sealed.size(), missing()));
  }
  STASIS_TRY(Add(sealed));
  return Finish();
}

Result<std::string> SealObject(const MasterKey& master, std::string_view purpose,
                               std::string_view plain) {
  if (plain.size() > kMaxSealedBytes) {
    return Fail(Code::kInvalidArgument,
                fmt::format("an object of {} bytes cannot be encrypted", plain.size()));
  }
  STASIS_ASSIGN(const Id128 object, Id128::Random());
  STASIS_ASSIGN(auto gcm, Gcm::Create(Gcm::Direction::kEncrypt, master.ObjectKey(object)));
  std::string sealed(kSealMagic);
  AppendNumber(sealed, kSealVersion);
  sealed += master.id().View();
  sealed += object.View();
  AppendNumber(sealed, static_cast<uint64_t>(plain.size()));
  STASIS_TRY(gcm->Begin(0, sealed + std::string(purpose)));
  sealed.resize(SealedObjectBytes(plain.size()));
  STASIS_TRY(gcm->Update(plain, sealed.data() + kSealHeaderBytes));
  STASIS_TRY(gcm->Finish(sealed.data() + kSealHeaderBytes + plain.size()));
  return sealed;
}

namespace {

// Checks everything that can be checked without decrypting.
Status CheckHeader(const MasterKey& master, std::string_view sealed, const std::string& what) {
  if (sealed.size() < SealedObjectBytes(0) || !sealed.starts_with(kSealMagic)) {
    return Fail(Code::kDataLoss, what + " is not an encrypted object of Stasis, or is truncated");
  }
  if (const auto version = NumberAt<uint32_t>(sealed, kSealMagic.size()); version != kSealVersion) {
    return Fail(Code::kUnimplemented,
                fmt::format("{} is encrypted in format version {}; this Stasis reads version {}",
                            what, version, kSealVersion));
  }
  const Id128 key = Id128::FromRaw(sealed.data() + 8);
  if (key != master.id()) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} is encrypted with master key {}, and the master key here is {}",
                            what, key.Hex(), master.id().Hex()),
                "`stasis key show` says where this key comes from");
  }
  const auto plain_bytes = NumberAt<uint64_t>(sealed, kSealHeaderBytes - sizeof(uint64_t));
  if (plain_bytes > kMaxSealedBytes || SealedObjectBytes(plain_bytes) != sealed.size()) {
    return Fail(Code::kDataLoss, fmt::format("{} is truncated or damaged: its length of {} bytes "
                                             "does not match the length that it records",
                                             what, sealed.size()));
  }
  return {};
}

}  // namespace

Result<std::string> OpenObject(const MasterKey& master, std::string_view purpose,
                               std::string_view sealed, const std::string& what) {
  STASIS_TRY(CheckHeader(master, sealed, what));
  const std::string_view header = sealed.substr(0, kSealHeaderBytes);
  const std::string_view tag = sealed.substr(sealed.size() - kSealTagBytes);
  STASIS_ASSIGN(auto gcm, Gcm::Create(Gcm::Direction::kDecrypt,
                                      master.ObjectKey(Id128::FromRaw(sealed.data() + 24))));
  STASIS_TRY(gcm->Begin(0, std::string(header) + std::string(purpose)));
  std::string plain(sealed.size() - SealedObjectBytes(0), '\0');
  STASIS_TRY(gcm->Update(sealed.substr(kSealHeaderBytes, plain.size()), plain.data()));
  if (gcm->Verify(tag)) return plain;
  Erase(plain);
  return Fail(Code::kDataLoss,
              what + " is not what was encrypted: it was changed, or is another object");
}

Result<std::string> SealKnownText(const MasterKey& master) {
  return SealObject(master, kKnownPurpose, kKnownText);
}

Status CheckKnownText(const MasterKey& master, std::string_view sealed, const std::string& what) {
  STASIS_ASSIGN(const std::string text, OpenObject(master, kKnownPurpose, sealed, what));
  if (text == kKnownText) return {};
  return Fail(Code::kDataLoss,
              what + " is encrypted with this key, but does not contain the expected text");
}

}  // namespace stasis::repository
