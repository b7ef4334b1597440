#include "repository/image_units.h"

#include <fmt/format.h>

#include "base/descriptor_table.h"
#include "base/file.h"
#include "repository/limits.h"
#include "store/unit_jobs.h"

namespace stasis::repository {

namespace {

constexpr uint32_t kNone = ~0u;
constexpr size_t kMaxItems = store::kMaxImageUnits + (1u << 24);

const std::vector<store::UnitRun>* RunsOf(const store::Manifest& manifest,
                                          const Sequence& sequence) {
  switch (sequence.kind) {
    case Sequence::Kind::kRange:
      return &manifest.ranges[sequence.index].runs;
    case Sequence::Kind::kPageFile:
      return &manifest.page_files[sequence.index].runs;
    case Sequence::Kind::kFile:
      break;
  }
  return nullptr;
}

}  // namespace

Result<ImageUnits> ImageUnits::Open(const store::ImageReader& image) {
  ImageUnits units(image);
  STASIS_TRY(units.OpenPacks());
  STASIS_TRY(units.AddPackItems());
  units.AddRuns();
  if (units.items_.size() > kMaxItems) {
    return Fail(Code::kResourceExhausted, Domain::kImage, 0,
                fmt::format("image {} has {} units; at most {} can be pushed", image.path(),
                            units.items_.size(), kMaxItems));
  }
  return units;
}

Status ImageUnits::OpenPacks() {
  (void)RaiseDescriptorLimit();
  for (const store::Pack& pack : image_->manifest().packs) {
    STASIS_ASSIGN(store::PackReader reader, image_->OpenPack(pack));
    item_of_.emplace_back(reader.units(), kNone);
    packs_.push_back(std::move(reader));
  }
  return {};
}

// Every unit that the image uses becomes an item, in the order of its packs. A run of the manifest
// is therefore a run of items.
Status ImageUnits::AddPackItems() {
  const store::Manifest& manifest = image_->manifest();
  for (const Sequence& sequence : SequencesOf(manifest)) {
    const auto* runs = RunsOf(manifest, sequence);
    if (runs == nullptr) continue;
    for (const store::UnitRun& run : *runs) {
      if (run.is_zero()) continue;
      auto& item_of = item_of_[run.pack];
      if (uint64_t{run.first} + run.units > item_of.size()) {
        return Fail(
            Code::kDataLoss, Domain::kImage, 0,
            fmt::format("{} has {} units, but the image needs {} from unit {} on",
                        manifest.packs[run.pack].path(), item_of.size(), run.units, run.first),
            store::kOtherCopyHint);
      }
      std::fill_n(item_of.begin() + run.first, run.units, 0);
    }
  }
  for (uint32_t pack = 0; pack < packs_.size(); ++pack) {
    const store::PackIndex& index = packs_[pack].index();
    for (uint32_t number = 0; number < item_of_[pack].size(); ++number) {
      uint32_t& item = item_of_[pack][number];
      if (item == kNone) continue;
      item = static_cast<uint32_t>(items_.size());
      const uint64_t bytes = index.BytesOf(index.ExtentOf(number), number, 1);
      items_.push_back({pack, number, static_cast<uint32_t>(bytes)});
    }
  }
  return {};
}

void ImageUnits::AddRuns() {
  const store::Manifest& manifest = image_->manifest();
  for (const Sequence& sequence : SequencesOf(manifest)) {
    auto& runs = runs_.emplace_back();
    if (const auto* stored = RunsOf(manifest, sequence)) {
      for (const store::UnitRun& run : *stored) {
        runs.push_back({run.is_zero() ? Run::kZeros : item_of_[run.pack][run.first], run.units});
      }
      continue;
    }
    const auto source = static_cast<uint32_t>(packs_.size() + sequence.index);
    const auto parts = static_cast<uint32_t>(sequence.units());
    if (parts > 0) runs.push_back({static_cast<uint32_t>(items_.size()), parts});
    for (uint32_t part = 0; part < parts; ++part) {
      items_.push_back({source, part, sequence.UnitBytes(part)});
    }
  }
}

const Id128& ImageUnits::RecordedName(uint32_t item) const {
  return packs_[items_[item].source].index().units[items_[item].number].name;
}

Status ImageUnits::ReadPart(const Item& item, char* to) const {
  const store::File& file = image_->manifest().files[item.source - packs_.size()];
  STASIS_ASSIGN(const store::OpenedFile opened, store::OpenRegular(image_->dir_fd(), file.path));
  return Annotate(PreadAll(opened.fd.get(), to, item.bytes, uint64_t{item.number} * kFileUnitBytes),
                  "read " + file.path);
}

Status ImageUnits::Read(std::span<const Target> targets, char* buffer) const {
  std::vector<const store::PackReader*> readers;
  readers.reserve(packs_.size());
  for (const store::PackReader& pack : packs_) readers.push_back(&pack);
  store::UnitJobs jobs(std::move(readers));
  for (const Target& target : targets) {
    const Item& item = items_[target.item];
    if (IsInPack(target.item)) {
      jobs.Add(item.source, item.number, 1, 0, target.at);
    } else {
      STASIS_TRY(ReadPart(item, buffer + target.at));
    }
  }
  jobs.Plan(store::UnitJobs::Order::kPacks);
  char* const outputs[] = {buffer};
  for (size_t job = 0; job < jobs.size(); ++job) {
    store::UnitJobs::UnitPlace where;
    STASIS_TRY(jobs.Run(job, outputs, nullptr, where));
  }
  return {};
}

}  // namespace stasis::repository
