#include "cli/transfer.h"

#include <fmt/format.h>
#include <unistd.h>

#include "api/result_json.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/size.h"
#include "cli/interrupts.h"

namespace stasis::cli {
namespace {

std::string Plural(uint64_t count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace

void RepositoryFlags::AddTo(App verb) {
  verb.add_option("-R,--repo", name,
                  "A repository: its name (`stasis repo ls`), s3://BUCKET/PREFIX or a folder")
      ->option_text("REPO");
  verb.add_flag("--plain", plain, "With a location: the repository there is not encrypted");
}

void RepositoryFlags::AddLimitTo(App verb) {
  verb.add_option("--limit", limit,
                  "Maximum bytes per second in each direction, as in 200MiB (S3 only)")
      ->option_text("SIZE");
}

Result<v1::RepositoryChoice> RepositoryFlags::ToMessage() const {
  v1::RepositoryChoice message;
  // A folder may be named relative to the working directory; the name of a repository has no '/'.
  const bool is_path = name.find('/') != name.npos && !name.starts_with("s3://");
  message.set_name(is_path ? AbsolutePath(name) : name);
  message.set_plain(plain);
  if (!limit.empty()) {
    STASIS_ASSIGN(const uint64_t bytes, ParseSize(limit));
    message.set_max_bytes_per_second(bytes);
  }
  return message;
}

std::function<void(const google::protobuf::MessageLite&)> BytesProgress(const Globals& globals) {
  if (globals.quiet || !::isatty(STDERR_FILENO)) return nullptr;
  return [watch = Stopwatch()](const google::protobuf::MessageLite& message) {
    const auto& bytes = static_cast<const v1::OperationEvent&>(message).phase_bytes();
    const bool ended = bytes.done() == bytes.total();
    PrintStderr("\r\033[K" +
                (ended ? std::string()
                       : bytes.name() + " " +
                             FormatProgress(bytes.done(), bytes.total(), watch.Seconds())));
  };
}

Result<RepositoryCall> RepositoryCall::Open(const Globals& globals) {
  CatchInterrupts();
  RepositoryCall repository;
  STASIS_ASSIGN(repository.call_, OpenCall(globals));
  STASIS_ASSIGN(repository.stop_, StopWhenReadable::Start(InterruptFd()));
  repository.call_.cancelled = Interrupted;
  repository.call_.stop = repository.stop_->token();
  repository.call_.emit = BytesProgress(globals);
  return repository;
}

std::string TransferText(const v1::OperationResult& result) {
  const v1::Transfer& t = result.transfer();
  const bool push = result.verb() == "push";
  const double rate =
      result.total_s() > 0 ? static_cast<double>(t.moved_bytes()) / result.total_s() : 0;
  std::string text =
      push ? fmt::format("pushed {} to {}/{}\n", result.image(), t.repository(), t.name())
           : fmt::format("pulled {}/{} to {}\n", t.repository(), t.name(), result.image());
  text += fmt::format("  {} {} in {} ({}/s); {} {}\n", FormatBytes(t.moved_bytes()),
                      push ? "sent" : "received", FormatSeconds(result.total_s()),
                      FormatBytes(static_cast<uint64_t>(rate)), FormatBytes(t.known_bytes()),
                      push ? "were in the repository" : "were on this machine");
  text += "  " + Plural(t.requests(), "request");
  if (t.retries() > 0) text += fmt::format(", {} of them repeated", t.retries());
  text += "\n";
  for (const std::string& note : result.notes()) text += "  " + note + "\n";
  return text;
}

nlohmann::json TransferJson(const v1::OperationResult& result) {
  nlohmann::json document = api::ResultJson(result)["transfer"];
  document["image"] = result.image();
  document["image_bytes"] = result.image_bytes();
  document["seconds"] = result.total_s();
  document["notes"] = nlohmann::json::array();
  for (const std::string& note : result.notes()) document["notes"].push_back(note);
  return document;
}

}  // namespace stasis::cli
