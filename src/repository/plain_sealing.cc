#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "base/checksum.h"
#include "repository/limits.h"
#include "repository/sealing.h"

namespace stasis::repository {

namespace {

Id128 PlainTag(const Id128& pack, uint64_t number, std::string_view plain) {
  ChecksumStream checksum;
  checksum.Update(pack.View());
  checksum.Update({reinterpret_cast<const char*>(&number), sizeof number});
  checksum.Update(plain);
  return checksum.Finish();
}

class PlainUnitSealer final : public UnitSealer {
 public:
  explicit PlainUnitSealer(const Id128& id) : id_(id) {}
  const Id128& id() const override { return id_; }
  Status Seal(std::string_view plain, char* sealed) override {
    const Id128 tag = PlainTag(id_, next_++, plain);
    if (sealed != plain.data()) std::memcpy(sealed, plain.data(), plain.size());
    std::memcpy(sealed + plain.size(), tag.bytes.data(), kTagBytes);
    return {};
  }

 private:
  const Id128 id_;
  uint64_t next_ = 0;
};

class PlainUnitOpener final : public UnitOpener {
 public:
  explicit PlainUnitOpener(const Id128& id) : id_(id) {}
  Status Open(uint64_t number, std::string_view sealed, std::span<char> plain) override {
    assert(sealed.size() == plain.size() + kTagBytes);
    const std::string_view data = sealed.substr(0, plain.size());
    const Id128 tag = PlainTag(id_, number, data);
    if (std::memcmp(tag.bytes.data(), sealed.data() + plain.size(), kTagBytes) != 0) {
      return Fail(Code::kDataLoss, Domain::kImage, 0,
                  fmt::format("unit {} is damaged: its checksum is wrong", number));
    }
    if (plain.data() != data.data()) std::memcpy(plain.data(), data.data(), data.size());
    return {};
  }

 private:
  const Id128 id_;
};

// Records have a checksum and their key inside (record.h), so nothing is added.
class Plain final : public Sealing {
 public:
  Result<std::unique_ptr<UnitSealer>> NewPack() const override {
    STASIS_ASSIGN(const Id128 id, Id128::Random());
    return std::make_unique<PlainUnitSealer>(id);
  }
  Result<std::unique_ptr<UnitOpener>> OpenPack(const Id128& id) const override {
    return std::make_unique<PlainUnitOpener>(id);
  }
  Result<std::string> SealObject(std::string_view, std::string_view plain) const override {
    return std::string(plain);
  }
  Result<std::string> OpenObject(std::string_view, std::string_view sealed,
                                 const std::string&) const override {
    return std::string(sealed);
  }
};

}  // namespace

std::unique_ptr<Sealing> PlainSealing() { return std::make_unique<Plain>(); }

}  // namespace stasis::repository
