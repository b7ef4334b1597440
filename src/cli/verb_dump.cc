#include <memory>

#include "base/file.h"
#include "cli/operation.h"

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
  PlaceFlags places;
  CommonOptions common;
  CriuFlags criu;
};

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
      *request.mutable_criu() = options->criu.ToMessage();
      return RunOperation(globals, [&](api::Client& client, const api::OnEvent& on_event) {
        return client.Dump(request, on_event);
      });
    });
  });
}

}  // namespace stasis::cli
