#include <fmt/format.h>

#include <array>
#include <cassert>
#include <cstring>

#include "base/checksum.h"
#include "repository/limits.h"
#include "repository/sealing.h"

namespace stasis::repository {

namespace {

// Begins the checksum that is the tag of a unit. The bytes of the unit follow.
void BeginTag(ChecksumStream& checksum, const Id128& pack, uint64_t number) {
  checksum.Reset();
  checksum.Update(pack.View());
  checksum.Update({reinterpret_cast<const char*>(&number), sizeof number});
}

class PlainUnitSealer final : public UnitSealer {
 public:
  explicit PlainUnitSealer(const Id128& id) : id_(id) {}
  const Id128& id() const override { return id_; }
  Status Seal(std::string_view plain, char* sealed) override {
    BeginTag(checksum_, id_, next_++);
    checksum_.Update(plain);
    const Id128 tag = checksum_.Finish();
    if (sealed != plain.data()) std::memcpy(sealed, plain.data(), plain.size());
    std::memcpy(sealed + plain.size(), tag.bytes.data(), kTagBytes);
    return {};
  }

 private:
  const Id128 id_;
  uint64_t next_ = 0;
  ChecksumStream checksum_;
};

class PlainUnitOpener final : public UnitOpener {
 public:
  explicit PlainUnitOpener(const Id128& id) : id_(id) {}
  Status Begin(uint64_t number, std::span<char> plain) override {
    number_ = number;
    plain_ = plain;
    taken_ = 0;
    BeginTag(checksum_, id_, number);
    return {};
  }
  Status Add(std::string_view sealed) override {
    assert(sealed.size() <= plain_.size() + kTagBytes - taken_);
    if (taken_ < plain_.size()) {
      const std::string_view data = sealed.substr(0, plain_.size() - taken_);
      std::memcpy(plain_.data() + taken_, data.data(), data.size());
      checksum_.Update({plain_.data() + taken_, data.size()});
      taken_ += data.size();
      sealed.remove_prefix(data.size());
    }
    if (sealed.empty()) return {};
    std::memcpy(tag_.data() + (taken_ - plain_.size()), sealed.data(), sealed.size());
    taken_ += sealed.size();
    return {};
  }
  Status Finish() override {
    const Id128 tag = checksum_.Finish();
    if (taken_ == plain_.size() + kTagBytes &&
        std::memcmp(tag.bytes.data(), tag_.data(), kTagBytes) == 0) {
      return {};
    }
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                fmt::format("unit {} is damaged: its checksum is wrong", number_));
  }

 private:
  const Id128 id_;
  uint64_t number_ = 0;
  std::span<char> plain_;
  uint64_t taken_ = 0;  // sealed bytes
  ChecksumStream checksum_;
  std::array<char, kTagBytes> tag_{};
};

// A record contains a checksum and the key of its object (record.h), so nothing is added.
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
