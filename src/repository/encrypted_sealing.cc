#include "repository/encrypted_sealing.h"

#include <utility>

#include "repository/seal.h"

namespace stasis::repository {
namespace {

class EncryptedUnitSealer final : public UnitSealer {
 public:
  explicit EncryptedUnitSealer(PackSealer sealer) : sealer_(std::move(sealer)) {}
  const Id128& id() const override { return sealer_.pack(); }
  Status Seal(std::string_view plain, char* sealed) override {
    STASIS_TRY(sealer_.Seal(plain, sealed));
    return {};
  }

 private:
  PackSealer sealer_;
};

class EncryptedUnitOpener final : public UnitOpener {
 public:
  explicit EncryptedUnitOpener(PackOpener opener) : opener_(std::move(opener)) {}
  Status Begin(uint64_t number, std::span<char> plain) override {
    return opener_.Begin(number, plain);
  }
  Status Add(std::string_view sealed) override { return opener_.Add(sealed); }
  Status Finish() override { return opener_.Finish(); }

 private:
  PackOpener opener_;
};

class Encrypted final : public Sealing {
 public:
  explicit Encrypted(const MasterKey& master) : master_(master) {}
  Result<std::unique_ptr<UnitSealer>> NewPack() const override {
    STASIS_ASSIGN(PackSealer sealer, PackSealer::Create(master_));
    return std::make_unique<EncryptedUnitSealer>(std::move(sealer));
  }
  Result<std::unique_ptr<UnitOpener>> OpenPack(const Id128& id) const override {
    STASIS_ASSIGN(PackOpener opener, PackOpener::Create(master_, id));
    return std::make_unique<EncryptedUnitOpener>(std::move(opener));
  }
  Result<std::string> SealObject(std::string_view purpose, std::string_view plain) const override {
    return repository::SealObject(master_, purpose, plain);
  }
  Result<std::string> OpenObject(std::string_view purpose, std::string_view sealed,
                                 const std::string& what) const override {
    return repository::OpenObject(master_, purpose, sealed, what);
  }

 private:
  const MasterKey master_;
};

}  // namespace

std::unique_ptr<Sealing> EncryptedSealing(const MasterKey& master) {
  return std::make_unique<Encrypted>(master);
}

}  // namespace stasis::repository
