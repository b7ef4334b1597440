#include "store/store_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/limits.h"
#include "store/manifest_check.h"
#include "store/report_text.h"
#include "store/store_folder.h"

namespace stasis::store {

using nlohmann::json;

Result<std::vector<ImageSummary>> SummarizeStore(const std::string& store) {
  STASIS_ASSIGN(auto names, ListImages(store));
  std::vector<ImageSummary> images;
  for (const std::string& name : names) {
    ImageSummary summary{name, store + "/" + name, {}, {}};
    if (Status good = CheckImageName(name); !good) {
      summary.error = std::move(good).error();
      images.push_back(std::move(summary));
      continue;
    }
    auto reader = ImageReader::Open(summary.path);
    if (reader) {
      summary.manifest = (*reader)->manifest();
    } else if (reader.error().code == Code::kNotFound) {
      continue;  // deleted meanwhile
    } else {
      summary.error = std::move(reader.error());
    }
    images.push_back(std::move(summary));
  }
  return images;
}

std::string ListText(const std::vector<ImageSummary>& images) {
  if (images.empty()) return "";
  size_t width = 5;
  for (const ImageSummary& image : images) width = std::max(width, image.name.size());
  std::string text = fmt::format("{:<{}}  {:<20}  {:<20}  {:>10}  {:>10}  {:>10}  {}\n", "IMAGE",
                                 width, "CREATED", "JOB", "SIZE", "ADDED", "GPU MEMORY", "COMMAND");
  for (const ImageSummary& image : images) {
    std::string name = Printable(image.name);
    if (!image.manifest) {
      text += fmt::format("{:<{}}  {}\n", name, width, Printable(image.error->ToString(), 500));
      continue;
    }
    const Manifest& m = *image.manifest;
    text += fmt::format("{:<{}}  {:<20}  {:<20}  {:>10}  {:>10}  {:>10}  {}\n", name, width,
                        Utc(m.created_unix_ns), JobName(m.job), Bytes(m.TotalBytes()),
                        Bytes(m.AddedBytes()), Bytes(DeviceBytes(m)),
                        Printable(CommandLine(m.job), 60));
  }
  return text;
}

json ListJson(const std::vector<ImageSummary>& images) {
  json list = json::array();
  for (const ImageSummary& image : images) {
    json row = {{"name", Text(image.name)}, {"path", Text(image.path)}};
    if (image.manifest) {
      const Manifest& m = *image.manifest;
      row.update({{"ok", true},
                  {"id", m.image_id.Hex()},
                  {"created", Utc(m.created_unix_ns)},
                  {"job", Text(m.job.id)},
                  {"command", Texts(m.job.argv)},
                  {"size_bytes", m.TotalBytes()},
                  {"added_bytes", m.AddedBytes()},
                  {"device_bytes", DeviceBytes(m)}});
    } else {
      row.update({{"ok", false}, {"error", Text(image.error->ToString())}});
    }
    list.push_back(std::move(row));
  }
  return {{"images", std::move(list)}};
}

std::string GcText(const GcReport& report) {
  std::string text;
  for (const std::string& name : report.swept) text += fmt::format("removed {}\n", name);
  for (const GcReport::Skipped& skipped : report.skipped) {
    text += fmt::format("left alone {}: {}\n", Printable(skipped.path, kMaxPathBytes),
                        Printable(skipped.why, 500));
  }
  text += fmt::format("{} images, {} packs; {} in {} units given back\n", report.images,
                      report.packs, Bytes(report.freed_bytes), report.freed_units);
  if (report.unused_bytes > 0) {
    text +=
        fmt::format("{} that no image needs could not be given back\n", Bytes(report.unused_bytes));
  }
  return text;
}

json GcJson(const GcReport& report) {
  json skipped = json::array();
  for (const GcReport::Skipped& one : report.skipped) {
    skipped.push_back({{"path", Text(one.path)}, {"why", Text(one.why)}, {"busy", one.busy}});
  }
  return {{"removed", Texts(report.swept)},
          {"images", report.images},
          {"packs", report.packs},
          {"freed_units", report.freed_units},
          {"freed_bytes", report.freed_bytes},
          {"unused_bytes", report.unused_bytes},
          {"left_alone", std::move(skipped)}};
}

}  // namespace stasis::store
