// stasis key: the master key of encrypted repositories.
#include <fmt/format.h>

#include <memory>

#include "api/methods.h"
#include "base/file.h"
#include "cli/message_json.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

constexpr char kKeepCopy[] =
    "Copy this file to every machine that needs to read the images, and to a safe place: without "
    "it\nnobody can decrypt them.\n";

Outcome CreateKey(const Globals& globals, const std::string& file) {
  v1::CreateKeyRequest request;
  if (!file.empty()) request.set_file(AbsolutePath(file));
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::CreateKey(call, request));
  PrintResult(
      globals,
      fmt::format("created {}\nkey id {}\n{}", response.path(), response.key_id(), kKeepCopy),
      MessageJson(response));
  return 0;
}

Outcome ShowKey(const Globals& globals) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::ShowKey(call, {}));
  PrintResult(globals,
              fmt::format("key id {}\nfrom   {} {}\nnames  {}\n", response.key_id(),
                          response.source(), response.from(),
                          response.joined() ? "of this key (joined)"
                                            : "of this host alone (`stasis key join`)"),
              MessageJson(response));
  return 0;
}

Outcome JoinKey(const Globals& globals) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::JoinKey(call, {}));
  std::string text = fmt::format("joined already: key id {}\n", response.key_id());
  if (response.changed()) {
    text = fmt::format(
        "joined: key id {}\nwrote {}\nThe next dump of each program shares nothing with earlier "
        "images.\n",
        response.key_id(), response.path());
  }
  PrintResult(globals, text, MessageJson(response));
  return 0;
}

}  // namespace

void RegisterKey(App app, const std::function<void(Action)>& select) {
  auto file = std::make_shared<std::string>();
  auto verb = app.add_subcommand("key", "Manage the master key of encrypted repositories");
  verb->require_subcommand(1);
  auto create = verb->add_subcommand("create", "Create a key in a file that only you can read");
  create
      ->add_option("--out", *file,
                   "The file (default: keys.file, or stasis-key in the state folder)")
      ->option_text("FILE");
  create->callback(
      [=] { select([=](const Globals& globals) { return CreateKey(globals, *file); }); });
  verb->add_subcommand("show", "Show the id of the key and where it comes from, never the key")
      ->callback([=] { select(ShowKey); });
  verb->add_subcommand("join",
                       "Name memory by this key, to share it with images of all hosts that have "
                       "the key")
      ->callback([=] { select(JoinKey); });
}

}  // namespace stasis::cli
