// stasis repo: repositories of images in object stores.
#include <fmt/format.h>

#include <memory>

#include "api/error_message.h"
#include "api/methods.h"
#include "base/file.h"
#include "base/size.h"
#include "cli/message_json.h"
#include "cli/operation.h"
#include "cli/table.h"
#include "cli/transfer.h"

namespace stasis::cli {
namespace {

struct RepositoryAddOptions {
  std::string name, location;
  std::string endpoint, region, addressing, ca_file, profile, limit;
  bool plain = false;
  bool trust = false;
};

bool IsS3(const std::string& location) { return location.starts_with("s3://"); }

Outcome AddRepository(const RepositoryAddOptions& options, const Globals& globals) {
  v1::AddRepositoryRequest request;
  v1::Repository& repository = *request.mutable_repository();
  repository.set_name(options.name);
  repository.set_location(IsS3(options.location) ? options.location
                                                 : AbsolutePath(options.location));
  repository.set_endpoint(options.endpoint);
  repository.set_region(options.region);
  repository.set_addressing(options.addressing);
  if (!options.ca_file.empty()) repository.set_ca_file(AbsolutePath(options.ca_file));
  repository.set_profile(options.profile);
  if (!options.limit.empty()) {
    STASIS_ASSIGN(const uint64_t bytes, ParseSize(options.limit));
    repository.set_max_bytes_per_second(bytes);
  }
  request.set_plain(options.plain);
  repository.set_trusted(options.trust);
  STASIS_ASSIGN(RepositoryCall repository_call, RepositoryCall::Open(globals));
  api::Call& call = repository_call.call();
  STASIS_ASSIGN(const auto response, api::AddRepository(call, request));
  std::string text = fmt::format("added {}: {} at {}\n", options.name,
                                 response.created() ? "a new repository" : "the repository",
                                 response.repository().location());
  text += options.plain
              ? "not encrypted: everybody who can read it can read the memory of programs\n"
              : fmt::format("encrypted with key {}\n", response.key_id());
  if (!response.warning().empty()) text += "warning: " + response.warning() + "\n";
  PrintResult(globals, text, MessageJson(response));
  return 0;
}

Outcome ListRepositories(const Globals& globals) {
  STASIS_ASSIGN(RepositoryCall repository_call, RepositoryCall::Open(globals));
  api::Call& call = repository_call.call();
  STASIS_ASSIGN(const auto response, api::ListRepositories(call, {}));
  std::vector<std::vector<std::string>> rows = {{"NAME", "LOCATION", "ENCRYPTED", "TRUSTED"}};
  for (const auto& one : response.repositories()) {
    rows.push_back(
        {one.name(), one.location(), one.encrypted() ? "yes" : "no", one.trusted() ? "yes" : "no"});
  }
  PrintResult(globals, rows.size() > 1 ? FormatTable(rows) : "no repositories\n",
              MessageJson(response));
  return 0;
}

Outcome CheckRepository(const RepositoryFlags& flags, const Globals& globals) {
  v1::CheckRepositoryRequest request;
  STASIS_ASSIGN(*request.mutable_repository(), flags.ToMessage());
  STASIS_ASSIGN(RepositoryCall repository_call, RepositoryCall::Open(globals));
  api::Call& call = repository_call.call();
  STASIS_ASSIGN(const auto response, api::CheckRepository(call, request));
  std::string text =
      fmt::format("{} at {}\n", response.repository().name(), response.repository().location());
  for (const auto& step : response.steps()) {
    text += fmt::format("  {:<7} {:>9}  {}\n", step.name(), FormatSeconds(step.seconds()),
                        step.has_error() ? "failed" : "ok");
  }
  if (!response.warning().empty()) text += "  warning: " + response.warning() + "\n";
  PrintResult(globals, text, MessageJson(response));
  if (response.ok()) return 0;
  // The document on stdout contains the error too, so stderr gets only its text.
  Globals text_only = globals;
  text_only.json = false;
  for (const auto& step : response.steps()) {
    if (!step.has_error()) continue;
    const Error error = api::DecodeError(step.error());
    PrintError(text_only, error);
    return ExitCode(error);
  }
  return 1;
}

Outcome RemoveRepository(const std::string& name, const Globals& globals) {
  v1::RemoveRepositoryRequest request;
  request.set_name(name);
  STASIS_ASSIGN(RepositoryCall repository_call, RepositoryCall::Open(globals));
  api::Call& call = repository_call.call();
  STASIS_ASSIGN(const auto response, api::RemoveRepository(call, request));
  PrintResult(globals, fmt::format("removed {}; its images were not touched\n", name),
              MessageJson(response));
  return 0;
}

void RegisterRepoAdd(App verb, const std::function<void(Action)>& select) {
  auto options = std::make_shared<RepositoryAddOptions>();
  auto add = verb.add_subcommand(
      "add", "Name a repository, and create it if there is none at that location");
  add->add_option("NAME", options->name, "Its name here: letters a-z, digits, '.', '_', '-'")
      ->required();
  add->add_option("LOCATION", options->location,
                  "s3://BUCKET/PREFIX, or a folder, which may be on NFS or Lustre")
      ->required();
  add->add_option("--endpoint", options->endpoint,
                  "The S3 server, https://HOST[:PORT] (default: AWS)")
      ->option_text("URL");
  add->add_option("--region", options->region, "The region (default: us-east-1)");
  add->add_option("--addressing", options->addressing,
                  "Where the bucket's name is: in the path or the host name (default: path with "
                  "--endpoint, else host)")
      ->one_of({"path", "host"});
  add->add_option("--ca", options->ca_file,
                  "CA certificates for the server, a PEM file (default: the system's)")
      ->option_text("FILE");
  add->add_option("--profile", options->profile, "The profile in ~/.aws with the credentials");
  add->add_option("--limit", options->limit, "Maximum bytes per second in each direction")
      ->option_text("SIZE");
  add->add_flag("--plain", options->plain,
                "Do not encrypt: images are readable by everybody who can read the objects");
  add->add_flag("--trust", options->trust,
                "Restore its images without --trust-image: everybody who can write to it can run "
                "programs here");
  add->callback(
      [=] { select([=](const Globals& globals) { return AddRepository(*options, globals); }); });
}

}  // namespace

void RegisterRepo(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("repo", "Manage repositories of images in object stores");
  verb->require_subcommand(1);
  RegisterRepoAdd(verb, select);
  verb->add_subcommand("ls", "List the repositories")->callback([=] { select(ListRepositories); });
  auto flags = std::make_shared<RepositoryFlags>();
  auto check = verb->add_subcommand(
      "check", "Open a repository, and write, read, list and delete an object in it");
  check->add_option("REPO", flags->name, "Its name or location (default: repository.default)");
  check->add_flag("--plain", flags->plain, "With a location: the repository is not encrypted");
  check->callback(
      [=] { select([=](const Globals& globals) { return CheckRepository(*flags, globals); }); });
  auto name = std::make_shared<std::string>();
  auto remove = verb->add_subcommand("remove", "Forget a repository, without changing it");
  remove->add_option("NAME", *name, "Its name")->required();
  remove->callback(
      [=] { select([=](const Globals& globals) { return RemoveRepository(*name, globals); }); });
}

}  // namespace stasis::cli
