#include "store/block_writer.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/deadline.h"
#include "image/pack.h"
#include "image/parallel.h"
#include "store/clock.h"
#include "store/codec_choice.h"
#include "store/earlier_blocks.h"
#include "store/store_folder.h"

namespace stasis::store {

using image::BlockKey;
using image::Codec;
using image::Compress;
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
using image::Progress;

namespace {

// A pack is linked only if the image needs this part of what it takes on the disk. A link keeps all
// of it there until the next gc, and where no holes can be made for good; and what is written anew
// instead is at most this part of a pack, once.
constexpr uint64_t kLeastUse = 8;  // one eighth

// A block that saves less is stored as it is: reading it back costs more than it spared.
constexpr size_t kLeastSaving = 16;  // one sixteenth

// Threads more than processors: so many blocks being written keep a device busy, and the threads
// wait for it.
constexpr unsigned kBusyWrites = 2;

}  // namespace

void WrittenBlocks::DescribeIn(Manifest& manifest) const {
  if (ranges.empty()) return;
  manifest.block_naming = naming;
  manifest.ranges = ranges;
  manifest.packs = packs;
}

struct BlockWriter::State {
  State(ImageWriter& image_writer, BlockKey block_key, BlockWriterOptions block_options)
      : writer(image_writer),
        key(std::move(block_key)),
        options(std::move(block_options)),
        own(image_writer, options.packs),
        codecs(options.compression) {}

  // Where a block is: in a pack of our own, or in one of earlier images.
  struct Place {
    bool linked = false;
    uint32_t pack = 0;  // index into own, once it is written; or among the earlier packs
  };
  // A block that an earlier image seems to have; whether its pack is worth it, and sound, is seen
  // when all such blocks are known.
  struct Deferred {
    Id128 name;
    std::string_view data;
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
  PackSet own;
  CodecChoice codecs;
  EarlierBlocks earlier;
  std::atomic<uint64_t> looked{0};
  std::atomic<uint64_t> zero_bytes{0};
  std::vector<DeviceRange> ranges;
  std::map<uint32_t, Linked> linked;  // by place among the earlier packs
  uint64_t check_budget = 0;

  std::mutex mutex;  // of what follows
  std::unordered_map<Id128, Place, Id128Hash> places;
  std::vector<Deferred> deferred;
  std::optional<Error> failed;
  WrittenBlocks out;

  void Look(std::string_view block, const Id128* given, Id128& name);
  Result<uint32_t> Store(const Id128& name, std::string_view block);
  void StoreOrFail(const Id128& name, std::string_view block, bool check);
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
    EarlierBlocks::Query query{state->key.id(), state->options.job_id, state->options.uid,
                               state->options.origin};
    STASIS_ASSIGN(state->earlier, EarlierBlocks::Look(writer.store(), query));
  }
  return BlockWriter(std::move(state));
}

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

Status BlockWriter::Add(std::vector<BlockSource> sources) {
  struct Block {
    BlockSource* source;
    size_t index;
  };
  std::vector<Block> blocks;
  for (BlockSource& source : sources) {
    DeviceRange& range = source.range;
    if (source.data.size() != range.size_bytes || range.block_bytes == 0) {
      return Fail(Code::kInternal, "a range of another size than its data");
    }
    range.blocks.resize((source.data.size() + range.block_bytes - 1) / range.block_bytes);
    if ((!source.names.empty() && source.names.size() != range.blocks.size()) ||
        (!source.zeros.empty() && source.zeros.size() != range.blocks.size())) {
      return Fail(Code::kInternal, "a range with another number of names than of blocks");
    }
    for (size_t i = 0; i < range.blocks.size(); ++i) blocks.push_back({&source, i});
  }
  STASIS_TRY(state_->InParallel(blocks.size(), [&](size_t i) {
    BlockSource& source = *blocks[i].source;
    const size_t index = blocks[i].index;
    const uint64_t block_bytes = source.range.block_bytes;
    std::string_view block = source.data.substr(index * block_bytes, block_bytes);
    if (!source.zeros.empty() && source.zeros[index] != 0) {
      state_->looked += block.size();
      state_->zero_bytes += block.size();
      return;
    }
    state_->Look(block, source.names.empty() ? nullptr : &source.names[index],
                 source.range.blocks[index]);
  }));
  for (BlockSource& source : sources) state_->ranges.push_back(std::move(source.range));
  return {};
}

void BlockWriter::State::Look(std::string_view block, const Id128* given, Id128& name) {
  looked += block.size();
  if (given != nullptr ? given->IsZero() : IsAllZero(block)) {
    zero_bytes += block.size();
    return;
  }
  name = given != nullptr ? *given : key.Name(block);
  {
    std::lock_guard lock(mutex);
    if (!places.try_emplace(name).second) {
      out.repeated_bytes += block.size();
      return;
    }
    if (const auto* at = earlier.Find(name, block.size())) {
      deferred.push_back({name, block, at, given != nullptr});
      return;
    }
  }
  StoreOrFail(name, block, given != nullptr);
}

void BlockWriter::State::StoreOrFail(const Id128& name, std::string_view block, bool check) {
  Result<uint32_t> stored =
      check && key.Name(block) != name
          ? Fail(Code::kDataLoss, "GPU data in host memory is not what it was on the GPU")
          : Store(name, block);
  std::lock_guard lock(mutex);
  out.new_bytes += block.size();
  if (stored) {
    places[name].pack = *stored;
  } else if (!failed) {
    failed = std::move(stored).error();
  }
}

Result<uint32_t> BlockWriter::State::Store(const Id128& name, std::string_view block) {
  std::string_view stored = block;
  std::optional<Codec> codec;
  // What does not fill one page less is no saving, and what is one page cannot.
  size_t room = block.size() - block.size() / kLeastSaving;
  room = std::min<size_t>(room, (block.size() - 1) / kPackAlign * kPackAlign);
  if (room > 0) codec = codecs.Next(block.size());
  if (codec) {
    thread_local std::vector<char> buffer(kBlockBytes);
    const Stopwatch watch;
    size_t size = Compress(*codec, block, buffer.data(), room);
    if (size > 0) stored = {buffer.data(), size};
    codecs.Compressed(*codec, block.size(), stored.size(), watch.Seconds());
  }
  const Stopwatch watch;
  auto pack =
      own.Append(name, stored, block.size(), stored.data() == block.data() ? Codec::kNone : *codec);
  codecs.Written(stored.size(), watch.Seconds());
  return pack;
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
    checked =
        std::min(checked, earlier.CheckedUnixNs(image, candidate.blocks.front()->earlier->pack));
  }
  std::vector<const PackEntry*> entries;
  candidate.pack = pack.pack;
  candidate.pack.linked = true;
  candidate.pack.used_bytes = 0;
  for (const Deferred* block : candidate.blocks) {
    const PackEntry* entry = reader.Find(block->name);
    if (entry == nullptr || entry->logical_bytes != block->data.size()) {
      return Fail(Code::kDataLoss, pack.pack.path() + " lacks block " + block->name.Hex());
    }
    entries.push_back(entry);
    candidate.pack.used_bytes += entry->stored_bytes;
  }
  candidate.pack.used_blocks = entries.size();
  candidate.pack.checked_unix_ns = checked;
  // A copier, or a file system that compresses, may store zeros inside of a block as a hole.
  const bool must_read =
      now - checked > options.trust_ns || Ns(st.st_mtim) > checked || reader.AnyIsHole(entries);
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
    out.notes.push_back(DamagedNote(image, pack.pack, status.error()));
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
  return InParallel(rest.size(),
                    [&](size_t i) { StoreOrFail(rest[i]->name, rest[i]->data, rest[i]->check); });
}

// Our own packs first, then those of others; and of each block in which it is.
Status BlockWriter::State::FinishPacks() {
  STASIS_ASSIGN(out.packs, own.Finish());
  for (Pack& pack : out.packs) {
    pack.checked_unix_ns = UnixNow();
    out.stored_bytes += pack.used_bytes;
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
      range.packs.push_back(place.linked ? linked_index.at(place.pack) : place.pack);
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
