#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "api/error_message.h"
#include "api/methods.h"
#include "api/repository_choice.h"
#include "base/file.h"
#include "cli/message_json.h"
#include "cli/operation.h"
#include "cli/table.h"
#include "cli/transfer.h"

namespace stasis::cli {
namespace {

using nlohmann::json;

struct ImageOptions {
  std::string folder;  // -d
  std::vector<std::string> images;
  RepositoryFlags repository;  // -R
  std::string name;            // the name of a copy
  std::string compress;
  std::string not_before;

  std::string store() const { return folder.empty() ? "" : AbsolutePath(folder); }
};

// Sets the store and the repository of a request.
template <class Request>
Status SetPlace(const ImageOptions& options, Request& request) {
  request.set_store(options.store());
  if (options.repository.name.empty()) {
    if (!options.repository.plain) return {};
    return FailUsage("--plain is for a repository: name it with -R");
  }
  if (!options.folder.empty()) return FailUsage("-d names a local store, and -R a repository");
  STASIS_ASSIGN(*request.mutable_repository(), options.repository.ToMessage());
  return {};
}

// Returns the image in the form that a request needs: a name for an image of a repository,
// otherwise a name or an absolute path.
std::string ImageOf(const ImageOptions& options, const std::string& image) {
  return options.repository.name.empty() ? api::AbsoluteImage(image) : image;
}

// Parses "2026-11-26" or "2026-11-26T10:00:00Z", in UTC.
Result<int64_t> ParseTime(const std::string& text) {
  tm parts{};
  for (const char* format : {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"}) {
    parts = {};
    const char* end = ::strptime(text.c_str(), format, &parts);
    if (end != nullptr && *end == '\0') return ::timegm(&parts);
  }
  return FailUsage(fmt::format("\"{}\" is not a time", text.substr(0, 80)),
                   "write it in UTC, as in 2026-11-26 or 2026-11-26T10:00:00Z");
}

// Shortens a name, which another user's program may have chosen, and replaces control characters.
std::string OneLine(std::string text, size_t most = 200) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return text.size() <= most ? text : text.substr(0, most) + "…";
}

std::string Dash(const json& text) {
  const std::string line = OneLine(text.get<std::string>());
  return line.empty() ? "-" : line;
}

template <class Words>
std::string CommandLine(const Words& words, size_t most) {
  std::string line;
  for (const auto& entry : words) {
    const std::string& word = entry;
    line += (line.empty() ? "" : " ") + word;
  }
  return OneLine(line, most);
}

Outcome List(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::ListImagesRequest request;
  STASIS_TRY(SetPlace(options, request));
  STASIS_ASSIGN(const auto response, api::ListImages(call, request));
  std::vector<std::vector<std::string>> rows = {
      {"IMAGE", "CREATED", "JOB", "SIZE", "ADDED", "GPU MEMORY", "COMMAND"}};
  std::string damaged;
  for (const auto& image : response.images()) {
    if (!image.ok()) {
      damaged += OneLine(image.name()) + "  " + OneLine(image.error(), 500) + "\n";
      continue;
    }
    rows.push_back({image.name(), image.created(), image.job().empty() ? "-" : OneLine(image.job()),
                    FormatBytes(image.size_bytes()), FormatBytes(image.added_bytes()),
                    FormatBytes(image.device_bytes()), CommandLine(image.command(), 60)});
  }
  std::string text = rows.size() > 1 ? FormatTable(rows) : "";
  text += damaged;
  if (text.empty()) text = fmt::format("no images in {}\n", response.store());
  json document = MessageJson(response);
  document.erase("store");
  PrintResult(globals, text, document);
  return 0;
}

std::string OriginText(const std::string& by, const std::string& repository) {
  if (by == "own") return "this installation";
  if (by == "pulled") return "pulled from repository " + repository;
  if (by == "changed") return "this installation, but the manifest was changed later";
  if (by == "other") return "another installation (a restore needs --trust-image)";
  return "unknown: no MAC (a restore needs --trust-image)";
}

std::string InspectText(const json& image) {
  std::string text;
  auto line = [&](const char* label, const std::string& value) {
    text += fmt::format("{:<11}{}\n", label, value);
  };
  auto bytes = [](const json& value) { return FormatBytes(value.get<uint64_t>()); };
  auto sum = [](const json& list, const char* field) {
    uint64_t total = 0;
    for (const json& entry : list) total += entry[field].get<uint64_t>();
    return total;
  };
  const json &host = image["host"], &software = image["software"], &job = image["job"];
  line("image", image["path"].get<std::string>());
  line("id", image["id"].get<std::string>());
  line("format", image["format"].dump());
  line("created", fmt::format("{} on {}, Linux {} {}", image["created"].get<std::string>(),
                              Dash(host["name"]), Dash(host["kernel"]), Dash(host["machine"])));
  line("origin", OriginText(image["origin"]["by"], image["origin"]["repository"]));
  line("by", fmt::format("Stasis {}, CRIU {}", Dash(software["stasis"]), Dash(software["criu"])));
  if (software["driver_kind"] != "") {
    line("driver", Dash(software["driver_kind"]) + " " + Dash(software["driver"]));
  }
  line("job", (job["id"] == "" ? "pid " + job["root_pid"].dump() : Dash(job["id"])) +
                  (job["leave_running"].get<bool>() ? ", left running" : "") +
                  (job["suspended"].get<bool>() ? ", suspended" : ""));
  line("command", CommandLine(job["command"], 500));
  line("folder", Dash(job["working_directory"]));
  for (const json& process : image["processes"]) {
    std::string gpu;
    if (process["gpu_state"] != "none") {
      gpu = fmt::format(", GPU memory {}, was {}", bytes(process["device_bytes"]),
                        process["gpu_state"].get<std::string>());
    }
    line("process", process["pid"].dump() + " " + Dash(process["comm"]) + gpu);
  }
  for (const json& gpu : image["gpus"]) {
    line("gpu", fmt::format("{} {}: {} of {}", Dash(gpu["name"]), Dash(gpu["uuid"]),
                            bytes(gpu["used_bytes"]), bytes(gpu["total_bytes"])));
  }
  for (const json& external : image["externals"]) {
    line("external",
         fmt::format("{} ({}, fd {} of {})", Dash(external["key"]), Dash(external["kind"]),
                     external["fd"].dump(), external["pid"].dump()));
  }
  const uint64_t in_files = sum(image["files"], "size_bytes");
  line("files", fmt::format("{}, {}", image["files"].size(), FormatBytes(in_files)));
  if (!image["packs"].empty()) {
    const auto size = image["size_bytes"].get<uint64_t>();
    const uint64_t shared = size - image["added_bytes"].get<uint64_t>();
    line("packs", fmt::format("{}, {} of units: {} written for this image, {} shared with earlier "
                              "ones",
                              image["packs"].size(), FormatBytes(size - in_files),
                              FormatBytes(size - in_files - shared), FormatBytes(shared)));
  }
  if (!image["ranges"].empty()) {
    line("ranges",
         fmt::format("{}, {} of device memory, {} of it zero", image["ranges"].size(),
                     FormatBytes(sum(image["ranges"], "size_bytes")), bytes(image["zero_bytes"])));
  }
  for (const json& phase : image["phases"]) {
    const auto moved = phase["bytes"].get<uint64_t>();
    line("phase",
         fmt::format("{:<20} {:>9.3f} s{}", Dash(phase["name"]), phase["seconds"].get<double>(),
                     moved > 0 ? ", " + FormatBytes(moved) : ""));
  }
  return text;
}

Outcome Inspect(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::InspectImageRequest request;
  STASIS_TRY(SetPlace(options, request));
  request.set_image(ImageOf(options, options.images[0]));
  STASIS_ASSIGN(const auto response, api::InspectImage(call, request));
  const json document = json::parse(response.document());
  PrintResult(globals, InspectText(document), document);
  return 0;
}

Outcome Verify(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::VerifyImageRequest request;
  STASIS_TRY(SetPlace(options, request));
  request.set_image(ImageOf(options, options.images[0]));
  if (!options.not_before.empty()) {
    if (options.repository.name.empty()) {
      return FailUsage("--not-before is for an image in a repository");
    }
    STASIS_ASSIGN(const int64_t time, ParseTime(options.not_before));
    request.set_not_before_unix_s(time);
  }
  STASIS_ASSIGN(const auto response, api::VerifyImage(call, request));
  std::string text;
  for (const auto& finding : response.findings()) {
    text += OneLine(finding.path(), 4096) + " " + OneLine(finding.message(), 500) + "\n";
  }
  const int found = response.findings_size();
  const std::string verdict =
      found == 0 ? "whole" : fmt::format("damaged, {} finding{}", found, found == 1 ? "" : "s");
  const double rate =
      response.seconds() > 0 ? static_cast<double>(response.bytes()) / response.seconds() : 0;
  text += fmt::format("{}: {}, {} {}, {} read in {:.2f} s ({}/s)\n", response.path(), verdict,
                      response.files(), options.repository.name.empty() ? "files" : "packs",
                      FormatBytes(response.bytes()), response.seconds(),
                      FormatBytes(static_cast<uint64_t>(rate)));
  if (options.repository.name.empty()) {
    text += "origin: " + OriginText(response.origin().by(), response.origin().repository()) + "\n";
  }
  json document = MessageJson(response);
  document.erase("error");
  PrintResult(globals, text, document);
  if (response.ok()) return 0;
  // The findings on stdout are the result. The error goes to stderr only.
  Globals text_only = globals;
  text_only.json = false;
  PrintError(text_only, api::DecodeError(response.error()));
  return 1;
}

Outcome Delete(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::DeleteImagesRequest request;
  STASIS_TRY(SetPlace(options, request));
  for (const std::string& image : options.images) request.add_images(ImageOf(options, image));
  STASIS_ASSIGN(const auto response, api::DeleteImages(call, request));
  std::string text;
  for (const std::string& path : response.deleted()) text += "deleted " + path + "\n";
  PrintResult(globals, text, MessageJson(response));
  return 0;
}

Outcome Gc(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::CollectGarbageRequest request;
  STASIS_TRY(SetPlace(options, request));
  STASIS_ASSIGN(const auto response, api::CollectGarbage(call, request));
  std::string text;
  for (const std::string& name : response.removed()) text += "removed " + OneLine(name) + "\n";
  for (const auto& skipped : response.left_alone()) {
    text +=
        fmt::format("skipped {}: {}\n", OneLine(skipped.path(), 4096), OneLine(skipped.why(), 500));
  }
  if (request.has_repository()) {
    text +=
        fmt::format("{} images, {} pushes in progress; deleted {} packs, {}\n", response.images(),
                    response.pushes(), response.packs(), FormatBytes(response.freed_bytes()));
    PrintResult(globals, text, MessageJson(response));
    return 0;
  }
  text +=
      fmt::format("{} images, {} packs; freed {} in {} units\n", response.images(),
                  response.packs(), FormatBytes(response.freed_bytes()), response.freed_units());
  if (response.unused_bytes() > 0) {
    text += fmt::format("{} that no image needs could not be freed\n",
                        FormatBytes(response.unused_bytes()));
  }
  PrintResult(globals, text, MessageJson(response));
  return 0;
}

Outcome Push(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::PushImageRequest request;
  request.set_store(options.store());
  request.set_image(api::AbsoluteImage(options.images[0]));
  STASIS_ASSIGN(*request.mutable_repository(), options.repository.ToMessage());
  request.set_name(options.name);
  request.set_compress(options.compress);
  STASIS_ASSIGN(const auto event, api::PushImage(call, request));
  PrintResult(globals, TransferText(event.result()), TransferJson(event.result()));
  return 0;
}

Outcome Pull(const ImageOptions& options, api::Call& call, const Globals& globals) {
  v1::PullImageRequest request;
  request.set_store(options.store());
  request.set_image(options.images[0]);
  STASIS_ASSIGN(*request.mutable_repository(), options.repository.ToMessage());
  request.set_name(options.name);
  STASIS_ASSIGN(const auto event, api::PullImage(call, request));
  PrintResult(globals, TransferText(event.result()), TransferJson(event.result()));
  return 0;
}

// Accepts images of a repository as REPO/NAME, without -R.
Status SplitRemoteNames(const api::Call& call, ImageOptions& options) {
  for (std::string& image : options.images) {
    if (!options.repository.name.empty() || !options.folder.empty()) return {};
    STASIS_ASSIGN(const auto remote, api::ParseRemoteImage(call, image));
    if (!remote) return {};
    if (options.images.size() > 1) {
      return FailUsage("several images of a repository need -R", "name the repository with -R");
    }
    options.repository.name = remote->repository;
    image = remote->name;
  }
  return {};
}

struct ImageVerb {
  const char* name;
  const char* help;
  Outcome (*run)(const ImageOptions&, api::Call&, const Globals&);
  int min_images;
  int max_images;
};

constexpr ImageVerb kImageVerbs[] = {
    {"ls", "List the images of a store", List, 0, 0},
    {"inspect", "Show the contents of an image and what a restore needs", Inspect, 1, 1},
    {"verify", "Read every byte of an image and compare it with the checksums", Verify, 1, 1},
    {"delete", "Delete images", Delete, 1, 1000},
    {"gc", "Free the space that no image needs", Gc, 0, 0},
    {"push", "Copy an image to a repository; only what it lacks is sent", Push, 1, 1},
    {"pull", "Copy an image from a repository; only what is not here is fetched", Pull, 1, 1},
};

void AddOptionsOf(const ImageVerb& row, ImageOptions& options, App sub) {
  if (row.run == Push || row.run == Pull) {
    options.repository.AddLimitTo(sub);
    sub.add_option("--name", options.name, "Name of the copy (default: the same)");
  }
  if (row.run == Push) {
    sub.add_option("--compress", options.compress, "Compression: none, lz4 or zstd (default: none)")
        ->option_text("HOW");
  }
  if (row.run == Verify) {
    sub.add_option("--not-before", options.not_before,
                   "With -R: report an image that was pushed before TIME, because the storage may "
                   "have replaced the image by an earlier one. UTC, as in 2026-11-26T10:00:00Z")
        ->option_text("TIME");
  }
}

}  // namespace

void RegisterImage(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("image", "List, inspect, verify, copy and delete images");
  verb->require_subcommand(1);
  for (const ImageVerb& row : kImageVerbs) {
    auto options = std::make_shared<ImageOptions>();
    auto sub = verb->add_subcommand(row.name, row.help);
    sub->add_option("-d,--dir", options->folder,
                    "The store: a folder of images (default: folders.images)")
        ->option_text("DIR");
    options->repository.AddTo(sub);
    AddOptionsOf(row, *options, sub);
    if (row.max_images > 0) {
      sub->add_option("IMAGE", options->images, "A path, or a name in the store or repository")
          ->required()
          ->expected(row.min_images, row.max_images);
    }
    sub->callback([=, run = row.run] {
      select([=](const Globals& globals) -> Outcome {
        STASIS_ASSIGN(RepositoryCall repository, RepositoryCall::Open(globals));
        if (run != Push) STASIS_TRY(SplitRemoteNames(repository.call(), *options));
        return run(*options, repository.call(), globals);
      });
    });
  }
}

}  // namespace stasis::cli
