#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <optional>

#include "api/methods.h"
#include "api/repository_choice.h"
#include "base/file.h"
#include "cli/interrupts.h"
#include "cli/operation.h"
#include "cli/restart.h"
#include "cli/transfer.h"

namespace stasis::cli {
namespace {

struct DumpOptions {
  TargetWords target;
  std::string store;
  std::string name;
  bool leave_running = false;
  bool full = false;
  bool assume_unshared = false;
  std::string compress;
  RepositoryFlags to;
  bool keep_local = false;
  int keep = 0;  // 0: all
  ArenaLimitFlag arena_limit;
  PlaceFlags places;
  CommonOptions common;
  CriuFlags criu;
};

// The repository of --to, opened before anything is done to the program.
struct Destination {
  RepositoryCall repository_call;
  std::unique_ptr<repository::OpenedRepository> opened;
};

Result<Destination> OpenDestination(const Globals& globals, const DumpOptions& options,
                                    const v1::DumpRequest& request) {
  STASIS_ASSIGN(RepositoryCall repository_call, RepositoryCall::Open(globals));
  STASIS_ASSIGN(const v1::RepositoryChoice choice, options.to.ToMessage());
  STASIS_ASSIGN(auto opened, api::OpenForDump(repository_call.call(), choice, request.target(),
                                              request.name(), options.keep_local));
  return Destination{std::move(repository_call), std::move(opened)};
}

// Appends random characters to the image's name, because nodes that are preempted together may dump
// the same job in the same second.
Result<std::string> NameWithoutCollision(const std::string& image) {
  STASIS_ASSIGN(const Id128 random, Id128::Random());
  return image.substr(image.rfind('/') + 1) + "-" + random.Hex().substr(0, 6);
}

// Copies the image of a dump to the repository, and deletes it here unless it is to be kept. If the
// copy fails, the image stays on this machine, because the program may have ended.
Result<v1::OperationResult> PushDumped(Destination& destination, const DumpOptions& options,
                                       const v1::DumpRequest& dump, v1::OperationResult dumped) {
  api::Call& call = destination.repository_call.call();
  v1::PushImageRequest request;
  request.set_image(dumped.image());
  if (dump.name().empty()) {
    STASIS_ASSIGN(*request.mutable_name(), NameWithoutCollision(dumped.image()));
  }
  if (dump.compress() != "auto") request.set_compress(dump.compress());
  auto pushed = api::PushTo(call, *destination.opened, request);
  if (!pushed) {
    Error error = std::move(pushed).error();
    error.message = fmt::format("the image {} is complete on this machine, but was not copied: {}",
                                dumped.image(), error.message);
    error.hint =
        fmt::format("`stasis image push {} -R {}{}` tries again", dumped.image(),
                    destination.opened->registration().name, options.to.plain ? " --plain" : "");
    error.not_undone = true;
    return Fail(std::move(error));
  }
  *dumped.mutable_transfer() = pushed->result().transfer();
  for (const std::string& note : pushed->result().notes()) dumped.add_notes(note);
  if (options.keep_local) return dumped;
  v1::DeleteImagesRequest removal;
  removal.add_images(dumped.image());
  if (auto deleted = api::DeleteImages(call, removal); !deleted) {
    dumped.add_notes("the local copy could not be deleted: " + deleted.error().ToString());
  } else {
    dumped.set_image(dumped.transfer().repository() + "/" + dumped.transfer().name());
  }
  return dumped;
}

// Deletes the job's images except the newest `options.keep`, of which `dumped` is the first. An
// image that cannot be deleted becomes a note, because the dump has succeeded.
v1::OperationResult Prune(const Globals& globals, const DumpOptions& options, api::Client& client,
                          v1::OperationResult dumped) {
  auto prune = [&]() -> Status {
    STASIS_ASSIGN(const auto history, client.ListCheckpoints(dumped.job()));
    STASIS_ASSIGN(api::Call call, OpenCall(globals));
    for (const std::string& image : ImagesToPrune(history, dumped.image(), options.keep)) {
      v1::DeleteImagesRequest removal;
      removal.add_images(image);
      STASIS_TRY(api::DeleteImages(call, removal));
    }
    return {};
  };
  if (auto pruned = prune(); !pruned) {
    dumped.add_notes("an older image of the job could not be deleted: " +
                     pruned.error().ToString());
  }
  return dumped;
}

Outcome RunDump(const Globals& globals, const DumpOptions& options,
                const v1::DumpRequest& request) {
  std::optional<Destination> destination;
  if (options.to.name.empty()) {
    if (options.to.plain || options.keep_local || !options.to.limit.empty()) {
      return FailUsage("--plain, --keep-local and --limit need --to REPO");
    }
  } else {
    if (options.keep > 0) return FailUsage("--keep is for images on this machine, not for --to");
    STASIS_ASSIGN(destination, OpenDestination(globals, options, request));
  }
  const std::string& target = request.target();
  // A job's name begins with a letter; a container's kind is followed by a colon.
  if (options.keep > 0 && (std::isdigit(static_cast<unsigned char>(target[0])) != 0 ||
                           target.find(':') != target.npos)) {
    return FailUsage("--keep needs a job, because only a job has older images");
  }
  return RunOperation(
      globals,
      [&](api::Client& client, const api::OnEvent& on_event) -> Result<v1::OperationResult> {
        STASIS_ASSIGN(auto dumped, client.Dump(request, on_event));
        if (request.options().dry_run()) return dumped;
        if (options.keep > 0) return Prune(globals, options, client, std::move(dumped));
        if (!destination) return dumped;
        TakeBackFromDaemon();
        return PushDumped(*destination, options, request, std::move(dumped));
      });
}

}  // namespace

void RegisterDump(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<DumpOptions>();
  auto verb = app.add_subcommand("dump", "Save a program to an image, and end the program");
  options->target.AddTo(verb, "TARGET", kTargetHelp);
  verb->add_option(
      "-d,--dir", options->store,
      "The store: folder for the image (default: folders.images of the configuration)");
  verb->add_option("--name", options->name, "Name of the image, which must not exist yet");
  verb->add_flag("--leave-running", options->leave_running,
                 "Let the program continue as soon as its state is in memory");
  verb->add_flag("--full", options->full,
                 "Write all GPU memory, even data that earlier images in the store contain");
  AddAssumeUnshared(verb, options->assume_unshared);
  verb->add_option("--compress", options->compress,
                   "Compression: none, lz4, zstd, or auto (only if the storage is slower; default: "
                   "dump.compress of the configuration, or none)")
      ->option_text("HOW");
  verb->add_option(
          "--to", options->to,
          "Copy the image to this repository (a name, s3://BUCKET/PREFIX or a folder), and "
          "delete it here")
      ->option_text("REPO");
  verb->add_option("--keep", options->keep,
                   "After the dump, delete older images of the job, so that N are left (default: "
                   "keep all)")
      ->range(1, 1000000)
      ->option_text("N");
  verb->add_flag("--keep-local", options->keep_local, "With --to: keep the local image too");
  verb->add_flag("--plain", options->to.plain,
                 "With --to and a location: the repository there is not encrypted");
  options->to.AddLimitTo(verb);
  options->arena_limit.AddTo(verb);
  options->places.AddTo(verb);
  options->common.AddTo(verb);
  options->criu.AddTo(verb);
  AddGpuEnabled(verb);
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(const std::string name, options->target.Name());
      v1::DumpRequest request;
      request.set_target(name);
      *request.mutable_places() = options->places.ToMessage();
      *request.mutable_options() = options->common.ToMessage();
      if (!options->store.empty()) request.set_store(AbsolutePath(options->store));
      request.set_name(options->name);
      request.set_leave_running(options->leave_running);
      request.set_full(options->full);
      request.set_assume_unshared(options->assume_unshared);
      request.set_compress(options->compress);
      STASIS_ASSIGN(const uint64_t arena_limit, options->arena_limit.Bytes());
      request.set_arena_limit_bytes(arena_limit);
      *request.mutable_criu() = options->criu.ToMessage();
      return RunDump(globals, *options, request);
    });
  });
}

}  // namespace stasis::cli
