#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "base/deadline.h"
#include "base/file.h"
#include "cli/verb.h"
#include "store/gc.h"
#include "store/image_report.h"
#include "store/origin.h"
#include "store/store_folder.h"
#include "store/store_report.h"

namespace stasis::cli {
namespace {

struct Options {
  std::string folder;  // -d
  std::vector<std::string> images;

  Result<std::string> Store(const Globals& globals) const {
    if (!folder.empty()) return AbsolutePath(folder);
    STASIS_ASSIGN(Paths paths, OpenPaths(globals));
    return paths.images();
  }
  Result<std::string> Resolve(const Globals& globals, const std::string& name_or_path) const {
    STASIS_ASSIGN(std::string store, Store(globals));
    return store::ResolveImage({store}, name_or_path);
  }
};

Progress TerminalProgress(const Globals& globals) {
  if (globals.quiet || !::isatty(STDERR_FILENO)) return nullptr;
  return [watch = Stopwatch()](uint64_t done, uint64_t total) {
    double seconds = watch.Seconds();
    double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    std::string left =
        rate > 0 ? FormatSeconds(static_cast<double>(total - done) / rate) + " left" : "";
    if (done == total) {
      PrintStderr("\r\033[K");
    } else {
      PrintStderr(fmt::format("\r\033[K{} of {}, {}/s, {}", FormatBytes(done), FormatBytes(total),
                              FormatBytes(static_cast<uint64_t>(rate)), left));
    }
    return true;
  };
}

// Returns this user's own key, or nothing. An unusable key counts as none here; a restore reports
// the reason.
std::optional<store::OriginKey> OwnKey(const Globals& globals) {
  auto paths = OpenPaths(globals);
  if (!paths) return std::nullopt;
  auto key = store::FindOriginKey(*paths);
  return key ? *key : std::nullopt;
}

Outcome List(const Options& options, const Globals& globals) {
  STASIS_ASSIGN(std::string store, options.Store(globals));
  STASIS_ASSIGN(auto images, store::SummarizeStore(store));
  std::string text = images.empty() ? fmt::format("no images in {}\n", store) : ListText(images);
  PrintResult(globals, text, ListJson(images));
  return 0;
}

Outcome Inspect(const Options& options, const Globals& globals) {
  STASIS_ASSIGN(std::string path, options.Resolve(globals, options.images[0]));
  STASIS_ASSIGN(auto reader, store::ImageReader::Open(path));
  const auto key = OwnKey(globals);
  const store::OriginKey* own = key ? &*key : nullptr;
  PrintResult(globals, InspectText(*reader, own), InspectJson(*reader, own));
  return 0;
}

Outcome Verify(const Options& options, const Globals& globals) {
  STASIS_ASSIGN(std::string path, options.Resolve(globals, options.images[0]));
  STASIS_ASSIGN(auto reader, store::ImageReader::Open(path));
  STASIS_ASSIGN(auto report, reader->Verify(store::VerifyLevel::kFull, TerminalProgress(globals)));
  const auto key = OwnKey(globals);
  const store::OriginKey* own = key ? &*key : nullptr;
  if (reader->OriginBy(own) == store::Origin::kChanged) {
    report.findings.push_back({store::kManifestName, "was changed after it was written here"});
  }
  PrintResult(globals, VerifyText(*reader, report, own), VerifyJson(*reader, report, own));
  if (report.ok()) return 0;
  // The findings on stdout are the result. The one-sentence error goes to stderr only.
  Globals text_only = globals;
  text_only.json = false;
  PrintError(text_only, report.ToStatus(path).error());
  return 1;
}

Outcome Delete(const Options& options, const Globals& globals) {
  STASIS_ASSIGN(std::string store, options.Store(globals));
  // Also removes leftovers of interrupted deletes and dumps.
  STASIS_TRY(store::SweepPartials(store));
  std::vector<std::string> paths;  // find all images before deleting any
  for (const std::string& name : options.images) {
    STASIS_ASSIGN(std::string path, options.Resolve(globals, name));
    paths.push_back(std::move(path));
  }
  std::string text;
  for (const std::string& path : paths) {
    if (auto status = store::DeleteImage(path); !status) {
      if (!text.empty()) status.error().message += "; the images named before it were deleted";
      return Fail(std::move(status.error()).WithContext("cannot delete image " + path));
    }
    text += fmt::format("deleted {}\n", path);
  }
  PrintResult(globals, text, {{"deleted", paths}});
  return 0;
}

Outcome Gc(const Options& options, const Globals& globals) {
  STASIS_ASSIGN(std::string store, options.Store(globals));
  if (!PathExists(store)) {
    PrintResult(globals, fmt::format("no images in {}\n", store), store::GcJson({}));
    return 0;
  }
  STASIS_ASSIGN(auto report, store::CollectGarbage(store));
  PrintResult(globals, store::GcText(report), store::GcJson(report));
  return 0;
}

struct Row {
  const char* name;
  const char* help;
  Outcome (*run)(const Options&, const Globals&);
  int min_images;
  int max_images;
};

constexpr Row kRows[] = {
    {"ls", "List the images of a folder", List, 0, 0},
    {"inspect", "Say what an image holds and what a restore of it needs", Inspect, 1, 1},
    {"verify", "Read every byte of an image and compare it with what was recorded", Verify, 1, 1},
    {"delete", "Delete images", Delete, 1, 1000},
    {"gc", "Give back what no image needs any more", Gc, 0, 0},
};

}  // namespace

void RegisterImage(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("image", "List, inspect, verify and delete images, and tidy up");
  verb->require_subcommand(1);
  for (const Row& row : kRows) {
    auto options = std::make_shared<Options>();
    auto sub = verb->add_subcommand(row.name, row.help);
    sub->add_option("-d,--dir", options->folder, "The folder with the images")->option_text("DIR");
    if (row.max_images > 0) {
      sub->add_option("IMAGE", options->images, "A path, or a name in that folder")
          ->required()
          ->expected(row.min_images, row.max_images);
    }
    sub->callback([=, run = row.run] {
      select([=](const Globals& globals) { return run(*options, globals); });
    });
  }
}

}  // namespace stasis::cli
