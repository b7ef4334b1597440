#include <memory>

#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct SuspendOptions {
  std::string target;
  GpuFlags gpus;
  std::string spill_dir;
  bool no_spill = false;
  bool keep_context = false;
  bool assume_unshared = false;
  PlaceFlags places;
  CommonOptions common;
};

}  // namespace

void RegisterSuspend(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<SuspendOptions>();
  auto verb = app.add_subcommand("suspend", "Free the GPU of a program without ending the program");
  verb->add_option("TARGET", options->target, kTargetHelp)->required();
  auto spill = verb->add_option(
      "--spill", options->spill_dir,
      "Save GPU data to a file in this folder instead of host memory (slower; for programs with "
      "the agent)");
  verb->add_flag("--no-spill", options->no_spill,
                 "Use host memory even if the configuration has folders.spill")
      ->excludes(spill);
  verb->add_flag(
      "--keep-context", options->keep_context,
      "Free only the data and keep the context: suspend and resume are much faster, but the "
      "context still takes GPU memory (for programs with the agent)");
  AddAssumeUnshared(verb, options->assume_unshared);
  options->places.AddTo(verb);
  options->common.AddTo(verb);
  verb->callback([=] {
    select([=](const Globals& globals) {
      v1::SuspendRequest request;
      request.set_target(options->target);
      *request.mutable_places() = options->places.ToMessage();
      *request.mutable_options() = options->common.ToMessage();
      request.set_keep_context(options->keep_context);
      request.set_spill_dir(options->spill_dir);
      request.set_no_spill(options->no_spill);
      request.set_assume_unshared(options->assume_unshared);
      return RunOperation(globals, [&](api::Client& client, const api::OnEvent& on_event) {
        return client.Suspend(request, on_event);
      });
    });
  });
}

void RegisterResume(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<SuspendOptions>();
  auto verb = app.add_subcommand("resume", "Return the GPU to a suspended program");
  verb->add_option("TARGET", options->target, kTargetHelp)->required();
  options->gpus.AddTo(verb);
  options->places.AddTo(verb);
  options->common.AddTo(verb);
  verb->callback([=] {
    select([=](const Globals& globals) {
      v1::ResumeRequest request;
      request.set_target(options->target);
      *request.mutable_places() = options->places.ToMessage();
      *request.mutable_options() = options->common.ToMessage();
      request.set_gpu_map(options->gpus.map);
      request.set_gpus(options->gpus.Granted());
      return RunOperation(globals, [&](api::Client& client, const api::OnEvent& on_event) {
        return client.Resume(request, on_event);
      });
    });
  });
}

}  // namespace stasis::cli
