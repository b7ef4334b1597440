#include "store/unit_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/checksum.h"
#include "base/deadline.h"
#include "base/parallel.h"
#include "store/thread_buffer.h"

namespace stasis::store {

namespace {

// An extent is stored uncompressed if compression saves less than this fraction of it:
// decompressing it would cost more than was saved.
constexpr size_t kLeastSaving = 16;  // one sixteenth

// Threads in addition to one per processor. They keep the storage busy while other threads compute.
constexpr unsigned kWriteThreads = 2;

}  // namespace

UnitWriter::UnitWriter(ImageWriter& writer, const WriteOptions& options, uint32_t unit_bytes,
                       size_t units)
    : writer_(writer),
      options_(options),
      unit_bytes_(unit_bytes),
      units_(units),
      positions_(units),
      linker_(writer, earlier_, options,
              [this](size_t count, const auto& work) { return InParallel(count, work); }),
      own_(writer, options.packs, unit_bytes),
      codecs_(options.compression) {
  for (Unit& unit : units_) unit.bytes = unit_bytes;
}

Result<std::unique_ptr<UnitWriter>> UnitWriter::Begin(ImageWriter& writer, const UnitNames& names,
                                                      const WriteOptions& options,
                                                      uint32_t unit_bytes, size_t units,
                                                      uint64_t enough) {
  std::unique_ptr<UnitWriter> unit_writer(new UnitWriter(writer, options, unit_bytes, units));
  unit_writer->out_.naming = {kUnitNameFunction, names.key().id()};
  if (options.share) {
    const EarlierQuery query{names.key().id(), options.job_id, options.uid, options.origins};
    STASIS_ASSIGN(unit_writer->earlier_,
                  EarlierUnits::Look(writer.store(), query, unit_bytes, enough));
    unit_writer->out_.notes = unit_writer->earlier_.notes();
  }
  return unit_writer;
}

Status UnitWriter::InParallel(size_t count, const std::function<Status(size_t)>& work) {
  const Progress progress = [this](uint64_t done, uint64_t) {
    return !options_.progress || options_.progress(done);
  };
  return ForEachWithProgress(count, work, looked_, 0, progress, kWriteThreads);
}

UnitWriter::Kind UnitWriter::Decide(uint32_t position) {
  auto name_of = [this](uint32_t p) -> const Id128& { return units_[p].stored.name; };
  Unit& unit = units_[position];
  assert(!unit.stored.name.IsZero());
  uint32_t& slot = positions_.At(unit.stored.name, name_of);
  if (slot != NameTable::kNone) {
    unit.kind = Kind::kRepeated;
    unit.number = slot;
    return unit.kind;
  }
  slot = position;
  unit.kind = Kind::kNew;
  const auto* found = earlier_.Find(unit.stored.name);
  if (found == nullptr) return unit.kind;
  const PackIndex& index = *earlier_.pack(found->pack).index;
  if (index.BytesOf(index.ExtentOf(found->number), found->number, 1) == unit.bytes) {
    unit.kind = Kind::kEarlier;
    unit.pack = found->pack;
    unit.number = found->number;
  }
  return unit.kind;
}

Status UnitWriter::LinkEarlier(const std::function<bool(uint32_t)>& wanted) {
  std::vector<NeededUnits> needed(earlier_.packs());
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (unit.kind != Kind::kEarlier || !wanted(i)) continue;
    positions.push_back(i);
    needed[unit.pack].numbers.push_back(unit.number);
    needed[unit.pack].images.insert(earlier_.Find(unit.stored.name)->image);
    needed[unit.pack].bytes += unit.bytes;
  }
  STASIS_TRY(linker_.Link(needed, looked_));
  for (uint32_t position : positions) {
    Unit& unit = units_[position];
    const auto place = linker_.PlaceOf(unit.pack);
    unit.kind = place ? Kind::kLinked : Kind::kNew;
    unit.pack = place.value_or(0);
  }
  return {};
}

Status UnitWriter::Store(std::span<const uint32_t> positions, std::string_view data) {
  std::vector<PackUnit> stored_units;
  stored_units.reserve(positions.size());
  size_t at = 0;
  for (uint32_t position : positions) {
    Unit& unit = units_[position];
    const Id128 checksum = Checksum(data.substr(at, unit.bytes));
    if (!unit.stored.checksum.IsZero() && unit.stored.checksum != checksum) {
      return Fail(Code::kDataLoss, "CPU memory of the program changed while it was written");
    }
    unit.stored.checksum = checksum;
    stored_units.push_back(unit.stored);
    at += unit.bytes;
  }
  assert(at == data.size());

  std::string_view stored = data;
  std::optional<Codec> codec;
  // Compression must save at least one page of the file, so data of a single page is not
  // compressed.
  size_t room = data.size() - data.size() / kLeastSaving;
  room = std::min<size_t>(room, (data.size() - 1) / kPackAlign * kPackAlign);
  if (room > 0) codec = codecs_.Next(data.size());
  if (codec) {
    thread_local ThreadBuffer<kMaxExtentBytes> buffer;
    const Stopwatch watch;
    const size_t size = Compress(*codec, data, buffer.data(), room);
    if (size > 0) stored = {buffer.data(), size};
    codecs_.Compressed(*codec, data.size(), stored.size(), watch.Seconds());
  }
  const Stopwatch watch;
  STASIS_ASSIGN(const PackSet::Place place,
                own_.Append(stored_units, stored, data.size(),
                            stored.data() == data.data() ? Codec::kNone : *codec));
  codecs_.Written(stored.size(), watch.Seconds());
  for (size_t i = 0; i < positions.size(); ++i) {
    Unit& unit = units_[positions[i]];
    unit.kind = Kind::kOwn;
    unit.pack = place.pack;
    unit.number = place.first + static_cast<uint32_t>(i);
  }
  new_bytes_ += data.size();
  return {};
}

uint32_t UnitWriter::Adopt(Pack pack) {
  new_bytes_ += pack.used_bytes;
  adopted_.push_back(std::move(pack));
  return static_cast<uint32_t>(adopted_.size() - 1);
}

// The packs written for this image come first, then those of earlier images.
Status UnitWriter::Finish() {
  STASIS_ASSIGN(out_.packs, own_.Finish());
  first_adopted_ = static_cast<uint32_t>(out_.packs.size());
  out_.packs.insert(out_.packs.end(), adopted_.begin(), adopted_.end());
  first_linked_ = static_cast<uint32_t>(out_.packs.size());
  for (const Pack& pack : out_.packs) out_.stored_bytes += pack.used_bytes;
  out_.packs.insert(out_.packs.end(), linker_.packs().begin(), linker_.packs().end());
  out_.new_bytes = new_bytes_;
  out_.shared_bytes = linker_.shared_bytes();
  out_.notes.insert(out_.notes.end(), linker_.notes().begin(), linker_.notes().end());
  return {};
}

Result<std::vector<UnitRun>> UnitWriter::Runs(size_t begin, size_t end) {
  std::vector<UnitRun> runs;
  for (size_t i = begin; i < end; ++i) {
    const bool repeated = units_[i].kind == Kind::kRepeated;
    const Unit& unit = repeated ? units_[units_[i].number] : units_[i];
    if (repeated) out_.repeated_bytes += units_[i].bytes;
    UnitRun one{UnitRun::kZeros, 0, 1};
    switch (unit.kind) {
      case Kind::kOwn:
        one = {unit.pack, unit.number, 1};
        break;
      case Kind::kAdopted:
        one = {first_adopted_ + unit.pack, unit.number, 1};
        break;
      case Kind::kLinked:
        one = {first_linked_ + unit.pack, unit.number, 1};
        break;
      case Kind::kZero:
        out_.zero_bytes += unit.bytes;
        break;
      default:  // without this error, a restore would read zeros in its place
        return Fail(Code::kInternal, fmt::format("unit {} was not stored", i));
    }
    UnitRun* last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->pack == one.pack &&
        (one.is_zero() || last->first + last->units == one.first)) {
      last->units += 1;
    } else {
      runs.push_back(one);
    }
  }
  return runs;
}

}  // namespace stasis::store
