// Code shared by commands that copy images to or from a repository.
#pragma once

#include <memory>
#include <string>

#include "base/stop_when_readable.h"
#include "cli/operation.h"

namespace stasis::cli {

// The options -R, --plain and --limit.
struct RepositoryFlags {
  std::string name;
  bool plain = false;
  std::string limit;

  void AddTo(App verb);
  void AddLimitTo(App verb);
  Result<v1::RepositoryChoice> ToMessage() const;
};

// Calls a method for repositories in this process, because the credentials for an object store may
// be in its environment. Shows progress on stderr. Ctrl-C cancels the call, even in the middle of a
// request.
class RepositoryCall {
 public:
  static Result<RepositoryCall> Open(const Globals& globals);
  api::Call& call() { return call_; }

 private:
  api::Call call_;
  std::unique_ptr<StopWhenReadable> stop_;
};

// Returns "pushed llama to fleet: 1.2 GiB sent, 38.0 GiB were there already, …", one or more lines.
std::string TransferText(const v1::OperationResult& result);
// Returns the JSON document of `image push` and `image pull`.
nlohmann::json TransferJson(const v1::OperationResult& result);

// Reports the progress of reading or copying an image, on a terminal.
std::function<void(const google::protobuf::MessageLite&)> BytesProgress(const Globals& globals);

}  // namespace stasis::cli
