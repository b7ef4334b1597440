#include "store/block_writer.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "image/pack.h"
#include "image/parallel.h"
#include "store/earlier_blocks.h"
#include "store/store_folder.h"

namespace stasis::store {

using image::BlockKey;
using image::Codec;
using image::Compress;
using image::Compression;
using image::DeviceRange;
using image::ForEach;
using image::Id128;
using image::Id128Hash;
using image::ImageWriter;
using image::IsAllZero;
using image::kBlockBytes;
using image::kBlockNameFunction;
using image::kPackAlign;
using image::Manifest;
using image::Pack;
using image::PackEntry;
using image::PackReader;
using image::PackWriter;
using image::Progress;

namespace {

// A pack is linked only if the image needs this part of what it takes on the disk. A link keeps all
// of it there until the next gc, and where no holes can be made for good; and what is written anew
// instead is at most this part of a pack, once.
constexpr uint64_t kLeastUse = 8;  // one eighth

// A block that saves less is stored as it is: reading it back costs more than it spared.
constexpr size_t kLeastSaving = 16;  // one sixteenth

// So many blocks being written keep a device busy; their threads wait for it.
constexpr uint32_t kBusyWrites = 2;

// kAuto: after so many blocks in a row that saved nothing, only each of so many is tried.
constexpr uint32_t kHopeless = 32;
constexpr uint32_t kTryEvery = 16;

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t Ns(const timespec& time) { return time.tv_sec * 1'000'000'000ll + time.tv_nsec; }

}  // namespace

void WrittenBlocks::DescribeIn(Manifest& manifest) const {
  if (ranges.empty()) return;
  manifest.block_naming = naming;
  manifest.ranges = ranges;
  manifest.packs = packs;
}

struct BlockWriter::State {
  State(ImageWriter& image_writer, BlockKey block_key, BlockWriterOptions block_options)
      : writer(image_writer), key(std::move(block_key)), options(std::move(block_options)) {}

  // Where a block is: in a pack of our own, or in one of earlier images.
  struct Place {
    bool linked;
    uint32_t pack;  // index into own, or among the earlier packs
  };
  // A block that an earlier image seems to have; whether its pack is worth it, and sound, is seen
  // when all such blocks are known.
  struct Deferred {
    Id128 name;
    std::string_view data;
    uint32_t own;  // the pack it goes into otherwise
    const EarlierBlocks::Block* earlier;
    bool check;  // its name was computed elsewhere
  };
  struct Linked {
    Pack pack;
    std::vector<const Deferred*> blocks;
  };

  ImageWriter& writer;
  const BlockKey key;
  const BlockWriterOptions options;
  EarlierBlocks earlier;
  std::atomic<uint64_t> looked{0};
  std::atomic<uint64_t> zero_bytes{0};
  std::atomic<uint32_t> writes{0};  // under way
  std::atomic<uint32_t> vain{0};    // blocks in a row that compression did not help
  std::atomic<uint32_t> tried{0};
  std::vector<DeviceRange> ranges;
  std::map<uint32_t, Linked> linked;  // by place among the earlier packs
  uint64_t check_budget = 0;

  std::mutex mutex;                           // of what follows
  std::deque<std::optional<PackWriter>> own;  // opened for their first block
  std::unordered_map<Id128, Place, Id128Hash> places;
  std::vector<Deferred> deferred;
  std::optional<Error> failed;
  WrittenBlocks out;

  void Look(std::string_view block, const Id128* given, Id128& name);
  Status Store(const Id128& name, std::string_view block, uint32_t own_index);
  Result<PackWriter*> OwnPack(uint32_t index);
  Status Append(PackWriter& pack, const Id128& name, std::string_view block);
  std::optional<Codec> CodecNow();
  void StoreOrFail(const Id128& name, std::string_view block, uint32_t own_index, bool check);
  Status InParallel(size_t count, const std::function<void(size_t)>& work);
  Status Share();
  bool Rely(uint32_t pack_index, Linked& candidate);
  Status CheckReferences(const EarlierBlocks::EarlierPack& pack, const PackReader& reader,
                         Linked& candidate);
  Status FinishPacks();
};

BlockWriter::BlockWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlockWriter::BlockWriter(BlockWriter&&) noexcept = default;
BlockWriter::~BlockWriter() = default;

Result<BlockWriter> BlockWriter::Begin(ImageWriter& writer, BlockKey key,
                                       BlockWriterOptions options) {
  auto state = std::make_unique<State>(writer, std::move(key), std::move(options));
  state->out.naming = {kBlockNameFunction, state->key.id()};
  state->check_budget = state->options.always_check_bytes;
  if (state->options.share) {
    EarlierBlocks::Query query{state->key.id(), state->options.job_id, state->options.uid};
    STASIS_ASSIGN(state->earlier, EarlierBlocks::Look(writer.store(), query));
  }
  return BlockWriter(std::move(state));
}

void BlockWriter::StartPack() { state_->own.emplace_back(); }

Status BlockWriter::State::InParallel(size_t count, const std::function<void(size_t)>& work) {
  auto unless_failed = [&](size_t i) {
    {
      std::lock_guard lock(mutex);
      if (failed) return;
    }
    work(i);
  };
  Progress progress = [&](uint64_t done, uint64_t) {
    return !options.progress || options.progress(done);
  };
  STASIS_TRY(ForEach(count, unless_failed, looked, 0, progress, kBusyWrites));
  if (failed) return Fail(std::move(*failed));
  return {};
}

Status BlockWriter::Add(DeviceRange range, std::string_view data, std::span<const Id128> names,
                        std::span<const uint8_t> zeros) {
  if (data.size() != range.size_bytes || range.block_bytes == 0) {
    return Fail(Code::kInternal, "a range of another size than its data");
  }
  if (state_->own.empty()) StartPack();
  range.blocks.resize((data.size() + range.block_bytes - 1) / range.block_bytes);
  if ((!names.empty() && names.size() != range.blocks.size()) ||
      (!zeros.empty() && zeros.size() != range.blocks.size())) {
    return Fail(Code::kInternal, "a range with another number of names than of blocks");
  }
  STASIS_TRY(state_->InParallel(range.blocks.size(), [&](size_t i) {
    if (!zeros.empty() && zeros[i] != 0) {
      const uint64_t bytes = data.substr(i * range.block_bytes, range.block_bytes).size();
      state_->looked += bytes;
      state_->zero_bytes += bytes;
      return;
    }
    state_->Look(data.substr(i * range.block_bytes, range.block_bytes),
                 names.empty() ? nullptr : &names[i], range.blocks[i]);
  }));
  state_->ranges.push_back(std::move(range));
  return {};
}

void BlockWriter::State::Look(std::string_view block, const Id128* given, Id128& name) {
  looked += block.size();
  if (given != nullptr ? given->IsZero() : IsAllZero(block)) {
    zero_bytes += block.size();
    return;
  }
  name = given != nullptr ? *given : key.Name(block);
  uint32_t own_index = 0;
  {
    std::lock_guard lock(mutex);
    own_index = static_cast<uint32_t>(own.size() - 1);
    if (!places.try_emplace(name, Place{false, own_index}).second) {
      out.repeated_bytes += block.size();
      return;
    }
    if (const auto* at = earlier.Find(name, block.size())) {
      deferred.push_back({name, block, own_index, at, given != nullptr});
      return;
    }
  }
  StoreOrFail(name, block, own_index, given != nullptr);
}

void BlockWriter::State::StoreOrFail(const Id128& name, std::string_view block, uint32_t own_index,
                                     bool check) {
  Status status;
  if (check && key.Name(block) != name) {
    status = Fail(Code::kDataLoss, "GPU data in host memory is not what it was on the GPU");
  } else {
    status = Store(name, block, own_index);
  }
  std::lock_guard lock(mutex);
  out.new_bytes += block.size();
  if (!status && !failed) failed = std::move(status.error());
}

Result<PackWriter*> BlockWriter::State::OwnPack(uint32_t index) {
  std::lock_guard lock(mutex);
  auto& pack = own[index];
  if (!pack) {
    STASIS_ASSIGN(pack, writer.AddPack());
  }
  return &*pack;
}

// With kAuto the storage is never kept waiting: a block is compressed only while others are being
// written, so that the device has something to do, and is else written at once as it is.
std::optional<Codec> BlockWriter::State::CodecNow() {
  switch (options.compression) {
    case Compression::kNone:
      return std::nullopt;
    case Compression::kLz4:
      return Codec::kLz4;
    case Compression::kZstd:
      return Codec::kZstd;
    case Compression::kAuto:
      break;
  }
  if (writes < kBusyWrites) return std::nullopt;
  if (vain >= kHopeless && tried++ % kTryEvery != 0) return std::nullopt;
  return Codec::kZstd;
}

Status BlockWriter::State::Store(const Id128& name, std::string_view block, uint32_t own_index) {
  STASIS_ASSIGN(PackWriter * pack, OwnPack(own_index));
  std::string_view stored = block;
  std::optional<Codec> codec = CodecNow();
  // What does not fill one page less is no saving, and what is one page cannot.
  size_t room = block.size() - block.size() / kLeastSaving;
  room = std::min<size_t>(room, (block.size() - 1) / kPackAlign * kPackAlign);
  if (codec && room > 0) {
    thread_local std::vector<char> buffer(kBlockBytes);
    size_t size = Compress(*codec, block, buffer.data(), room);
    if (size > 0) stored = {buffer.data(), size};
    vain = size > 0 ? 0 : vain + 1;
  }
  ++writes;
  auto status = pack->Append(name, stored, block.size(),
                             stored.data() == block.data() ? Codec::kNone : *codec);
  --writes;
  return status;
}

// Before an image relies on a block that another wrote, under the pack's lock, which keeps gc away:
//  - the image that refers to the block is still there, so gc cannot have freed it before
//    (docs/decisions has the argument);
//  - the pack's index is the one that was recorded, and has the block;
//  - its bytes are compared with their checksum, if that was not done lately, or anything says that
//    the file was written to since. Reading a block costs less than writing it, so even then a dump
//    is not slower than one that shares nothing.
Status BlockWriter::State::CheckReferences(const EarlierBlocks::EarlierPack& pack,
                                           const PackReader& reader, Linked& candidate) {
  if (reader.id() != pack.pack.id || reader.index_checksum() != pack.pack.index_checksum) {
    return Fail(Code::kDataLoss, pack.pack.path() + " is another pack than the one recorded");
  }
  struct stat st;
  if (::fstat(reader.fd(), &st) != 0) return FailErrno(errno, "stat " + pack.pack.path());

  const int64_t now = UnixNow();
  int64_t checked = now;
  std::set<uint32_t> images;
  for (const Deferred* block : candidate.blocks) images.insert(block->earlier->image);
  for (uint32_t image : images) {
    if (!earlier.IsStillThere(image)) return Fail(Code::kAborted, "its image is gone");
    checked = std::min(
        checked, earlier.image(image).checked_unix_ns.at(candidate.blocks.front()->earlier->pack));
  }
  bool must_read = now - checked > options.trust_ns || Ns(st.st_mtim) > checked;
  std::vector<const PackEntry*> entries;
  candidate.pack = pack.pack;
  candidate.pack.linked = true;
  candidate.pack.used_bytes = 0;
  for (const Deferred* block : candidate.blocks) {
    const PackEntry* entry = reader.Find(block->name);
    if (entry == nullptr || entry->logical_bytes != block->data.size()) {
      return Fail(Code::kDataLoss, pack.pack.path() + " lacks block " + block->name.Hex());
    }
    // A copier, or a file system that compresses, may store zeros inside of a block as a hole.
    must_read |= reader.IsHole(*entry);
    entries.push_back(entry);
    candidate.pack.used_bytes += entry->stored_bytes;
  }
  candidate.pack.used_blocks = entries.size();
  candidate.pack.checked_unix_ns = checked;
  if (!must_read && candidate.pack.used_bytes > check_budget) return {};
  check_budget -= std::min(check_budget, candidate.pack.used_bytes);

  std::mutex damage_mutex;
  std::optional<Error> damage;
  STASIS_TRY(InParallel(entries.size(), [&](size_t i) {
    auto status = reader.Check(*entries[i]);
    if (status) return;
    std::lock_guard lock(damage_mutex);
    if (!damage) damage = std::move(status.error());
  }));
  if (damage) return Fail(std::move(*damage));
  candidate.pack.checked_unix_ns = now;
  return {};
}

// Whether the image refers to the candidate's blocks from now on.
bool BlockWriter::State::Rely(uint32_t pack_index, Linked& candidate) {
  const auto& pack = earlier.pack(pack_index);
  const auto& image = earlier.image(candidate.blocks.front()->earlier->image);
  auto opened = writer.LinkPack(image.folder.get(), pack.pack, pack.file);
  if (!opened) return false;  // no links here, or it is gone, or gc is at it
  auto reader = PackReader::Open(std::move(*opened), pack.pack.path());
  Status status;
  if (reader) {
    status = CheckReferences(pack, *reader, candidate);
  } else {
    status = Fail(std::move(reader).error());
  }
  if (status) return true;
  writer.UnlinkPack(pack.pack);
  if (status.error().code == Code::kDataLoss) {
    out.notes.push_back(fmt::format(
        "image {} is damaged, so nothing of its {} was relied on: {} (`stasis image verify {}`)",
        image.name, pack.pack.path(), status.error().ToString(), image.name));
  }
  return false;
}

// Which of the earlier packs become files of this image; the blocks of all others are written.
Status BlockWriter::State::Share() {
  std::map<uint32_t, std::pair<uint64_t, Linked>> by_pack;  // bytes, blocks
  for (const Deferred& block : deferred) {
    auto& [bytes, candidate] = by_pack[block.earlier->pack];
    bytes += block.data.size();
    candidate.blocks.push_back(&block);
  }
  std::vector<std::pair<uint64_t, uint32_t>> most_used;
  for (const auto& [index, entry] : by_pack) most_used.emplace_back(entry.first, index);
  std::sort(most_used.begin(), most_used.end(), std::greater<>());

  std::vector<const Deferred*> rest;
  for (const auto& [bytes, index] : most_used) {
    Linked& candidate = by_pack[index].second;
    bool worth_it = linked.size() < options.max_linked_packs &&
                    bytes * kLeastUse >= earlier.pack(index).occupied_bytes;
    if (worth_it && Rely(index, candidate)) {
      out.shared_bytes += bytes;
      for (const Deferred* block : candidate.blocks) places[block->name] = Place{true, index};
      linked.emplace(index, std::move(candidate));
    } else {
      rest.insert(rest.end(), candidate.blocks.begin(), candidate.blocks.end());
    }
    if (options.progress && !options.progress(looked)) return Fail(Code::kCancelled, "cancelled");
  }
  return InParallel(rest.size(), [&](size_t i) {
    StoreOrFail(rest[i]->name, rest[i]->data, rest[i]->own, rest[i]->check);
  });
}

// Our own packs first, then those of others; and of each block in which it is.
Status BlockWriter::State::FinishPacks() {
  std::vector<uint32_t> own_index(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    if (!own[i]) continue;
    STASIS_TRY(own[i]->Finish());
    own_index[i] = static_cast<uint32_t>(out.packs.size());
    Pack pack;
    pack.id = own[i]->id();
    pack.used_blocks = own[i]->blocks();
    pack.used_bytes = own[i]->stored_bytes();
    pack.checked_unix_ns = UnixNow();
    out.stored_bytes += pack.used_bytes;
    out.packs.push_back(std::move(pack));
  }
  std::unordered_map<uint32_t, uint32_t> linked_index;
  for (auto& [index, one] : linked) {
    linked_index[index] = static_cast<uint32_t>(out.packs.size());
    out.packs.push_back(std::move(one.pack));
  }
  for (DeviceRange& range : ranges) {
    range.packs.reserve(range.blocks.size());
    for (const Id128& name : range.blocks) {
      if (name.IsZero()) {
        range.packs.push_back(0);
        continue;
      }
      const Place& place = places.at(name);
      range.packs.push_back(place.linked ? linked_index.at(place.pack) : own_index[place.pack]);
    }
  }
  return {};
}

Result<WrittenBlocks> BlockWriter::Finish() {
  STASIS_TRY(state_->Share());
  STASIS_TRY(state_->FinishPacks());
  state_->out.zero_bytes = state_->zero_bytes;
  state_->out.ranges = std::move(state_->ranges);
  return std::move(state_->out);
}

}  // namespace stasis::store
