#include "store/block_writer.h"

#include <algorithm>
#include <mutex>

#include "base/block_hash.h"
#include "store/unit_writer.h"

namespace stasis::store {

namespace {

using Kind = UnitWriter::Kind;

struct Block {
  std::string_view data;
  const Id128* hash;  // nullptr if the hash is not known
  bool is_zero;       // false if it is not known whether the block is zero
};

Result<std::vector<Block>> CutIntoBlocks(const std::vector<BlockSource>& sources) {
  std::vector<Block> blocks;
  for (const BlockSource& source : sources) {
    const uint64_t step = source.range.block_bytes;
    if (source.data.size() != source.range.size_bytes || step == 0 || step > kBlockBytes) {
      return Fail(Code::kInternal, "the size of a range does not match its data");
    }
    const size_t count = (source.data.size() + step - 1) / step;
    if ((!source.hashes.empty() && source.hashes.size() != count) ||
        (!source.zeros.empty() && source.zeros.size() != count)) {
      return Fail(Code::kInternal, "the number of hashes of a range does not match its blocks");
    }
    for (size_t i = 0; i < count; ++i) {
      blocks.push_back({source.data.substr(i * step, step),
                        source.hashes.empty() ? nullptr : &source.hashes[i],
                        !source.zeros.empty() && source.zeros[i] != 0});
    }
  }
  return blocks;
}

class BlockWriter {
 public:
  BlockWriter(const UnitNames& names, std::vector<Block> blocks, UnitWriter& units)
      : names_(names), blocks_(std::move(blocks)), units_(units) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      units_.unit(i).bytes = static_cast<uint32_t>(blocks_[i].data.size());
    }
  }

  // Stores new blocks immediately. Blocks that earlier images may contain are stored last, because
  // the number of such blocks in a pack decides whether the pack is linked.
  Status Run() {
    STASIS_TRY(units_.InParallel(blocks_.size(), [this](size_t i) { return Look(i); }));
    STASIS_TRY(units_.LinkEarlier([](uint32_t) { return true; }));
    std::vector<uint32_t> rest;
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      if (units_.unit(i).kind == Kind::kNew) rest.push_back(i);
    }
    STASIS_TRY(units_.InParallel(rest.size(), [&](size_t i) { return Store(rest[i]); }));
    return units_.Finish();
  }

 private:
  Status Look(size_t i) {
    const Block& block = blocks_[i];
    units_.looked() += block.data.size();
    if (block.is_zero || (block.hash != nullptr ? block.hash->IsZero() : IsAllZero(block.data))) {
      return {};
    }
    Id128 name = block.hash != nullptr ? *block.hash : names_.key().Hash(block.data);
    STASIS_TRY(names_.Encrypt({&name, 1}));
    const auto position = static_cast<uint32_t>(i);
    Kind kind;
    {
      std::lock_guard lock(mutex_);
      units_.unit(i).stored.name = name;
      kind = units_.Decide(position);
    }
    return kind == Kind::kNew ? Store(position) : Status();
  }

  Status Store(uint32_t position) {
    const Block& block = blocks_[position];
    if (block.hash != nullptr && names_.key().Hash(block.data) != *block.hash) {
      return Fail(Code::kDataLoss,
                  "GPU data in host memory has changed since it was copied from the GPU");
    }
    return units_.Store({&position, 1}, block.data);
  }

  const UnitNames& names_;
  const std::vector<Block> blocks_;
  UnitWriter& units_;
  std::mutex mutex_;  // guards names and decisions of units
};

}  // namespace

Result<WrittenUnits> WriteBlocks(ImageWriter& writer, const UnitNames& names,
                                 std::vector<BlockSource> sources, const WriteOptions& options) {
  STASIS_ASSIGN(auto blocks, CutIntoBlocks(sources));
  if (blocks.empty()) return WrittenUnits();
  STASIS_ASSIGN(auto units, UnitWriter::Begin(writer, names, options, kBlockBytes, blocks.size(),
                                              kMaxImageUnits));
  STASIS_TRY(BlockWriter(names, std::move(blocks), *units).Run());
  std::vector<DeviceRange> ranges;
  size_t begin = 0;
  for (BlockSource& source : sources) {
    const uint64_t step = source.range.block_bytes;
    const size_t end = begin + (source.data.size() + step - 1) / step;
    STASIS_ASSIGN(source.range.runs, units->Runs(begin, end));
    ranges.push_back(std::move(source.range));
    begin = end;
  }
  WrittenUnits written = units->Take();
  written.ranges = std::move(ranges);
  return written;
}

}  // namespace stasis::store
