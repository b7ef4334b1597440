#include <memory>

#include "base/file.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct Options {
  std::string target;
  std::string store;
  std::string name;
  bool leave_running = false;
  bool full = false;
  std::string compress = "none";
  CommonOptions common;
  CriuFlags criu;
};

}  // namespace

void RegisterDump(CLI::App& app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("dump", "Write a complete image of a program, then end it");
  verb->add_option("TARGET", options->target, "A job or a process id")->required();
  verb->add_option("-d,--dir", options->store,
                   "Folder in which the image appears (default: the images of this user)");
  verb->add_option("--name", options->name, "Name of the image; never overwrites");
  verb->add_flag("--leave-running", options->leave_running,
                 "Let the program run on, as soon as its state is in memory");
  verb->add_flag("--full", options->full,
                 "Write all GPU memory, also what earlier images of the store have");
  verb->add_option("--compress", options->compress,
                   "Blocks of GPU memory: none, lz4, zstd, or auto (where the storage is slower)")
      ->option_text("HOW");
  options->common.AddTo(*verb);
  options->criu.AddTo(*verb);
  verb->callback([=] {
    select([=](const Globals& globals) {
      return RunOperation(
          globals, options->common, "dump", "dump " + options->target,
          [=](auto& session, const auto& run) -> Result<coordinator::OperationResult> {
            const Paths& paths = session.services.paths;
            STASIS_ASSIGN(auto target, ParseTarget(paths, options->target));
            coordinator::DumpOptions dump;
            dump.store = options->store.empty() ? paths.images() : AbsolutePath(options->store);
            dump.name = options->name;
            dump.leave_running = options->leave_running;
            dump.full = options->full;
            STASIS_ASSIGN(dump.compression, image::ParseCompression(options->compress));
            STASIS_ASSIGN(dump.criu, options->criu.Parse());
            return coordinator::Dump(session, target, dump, run);
          });
    });
  });
}

}  // namespace stasis::cli
