// Code shared by commands that copy images to or from a repository.
#pragma once

#include <string>

#include "cli/operation.h"

namespace stasis::cli {

// -R, --plain and --limit.
struct RepositoryFlags {
  std::string name;
  bool plain = false;
  std::string limit;

  void AddTo(App verb);
  void AddLimitTo(App verb);
  Result<v1::RepositoryChoice> ToMessage() const;
};

// Copy an image, with progress on stderr. Ctrl-C cancels. They run in this process, because the
// credentials for an object store may be in its environment.
Result<v1::OperationResult> PushImage(const Globals& globals, const v1::PushImageRequest& request);
Result<v1::OperationResult> PullImage(const Globals& globals, const v1::PullImageRequest& request);
// "pushed llama to fleet: 1.2 GiB sent, 38.0 GiB were there already, …", one or more lines.
std::string TransferText(const v1::OperationResult& result);
// The document of `image push` and `image pull`.
nlohmann::json TransferJson(const v1::OperationResult& result);

// Reports the progress of reading or copying an image, on a terminal.
std::function<void(const google::protobuf::MessageLite&)> BytesProgress(const Globals& globals);

}  // namespace stasis::cli
