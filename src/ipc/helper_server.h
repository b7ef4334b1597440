// Code that the main functions and servers of all helpers share.
#pragma once

#include <chrono>
#include <string>

#include "base/fd.h"
#include "base/file.h"

namespace stasis::ipc {

struct HelperServerOptions {
  std::string library;  // driver library; empty: the loader's search
  std::string gpu;      // mover: the UUID of its GPU
  // Exit after this time without a client (private mover: without a request); 0: never.
  std::chrono::milliseconds idle_timeout{0};
  // Device helper: how long driver calls in progress may continue after the client disconnected.
  std::chrono::milliseconds settle_timeout{10000};
  std::string listen_path;  // ResidentPath(); empty: not resident

  bool resident() const { return !listen_path.empty(); }
};
// Parses `[--library L] [--gpu UUID] [--idle-ms N] [--settle-ms N] [--listen-as PATH]`, sets
// close-on-exec on the inherited descriptors (helper_process.h) and ignores SIGPIPE. Returns false,
// after a message on stderr, if no client started this process.
bool EnterHelper(int argc, char** argv, HelperServerOptions& options);

// Makes the inherited socket a listener and returns it. Returns no descriptor if that fails; the
// helper is then private.
UniqueFd ListenAsHelper();

// Accepts the next client. Returns no descriptor if the client has disconnected or belongs to
// another user. The user is checked because the folder of the sockets may have become accessible to
// others.
UniqueFd AcceptClient(int listener);

// Watches the name of a resident helper. If the name is removed, no client can find the helper, so
// it should exit and not keep the driver open until its idle time ends.
class NameWatch {
 public:
  // Watches nothing if `path` is empty.
  explicit NameWatch(std::string path);
  // Becomes readable when the name may have been removed; -1 if that cannot be watched.
  int fd() const { return events_.get(); }
  // Reads the events. Returns true if the name was removed or belongs to another file now. The
  // helper must then not remove the name.
  bool IsRemoved();

 private:
  const std::string path_;
  UniqueFd events_;
  FileId file_;
};

// Exits with the status, and removes the name of a resident helper. Clients that connected
// meanwhile see end-of-file. No destructors run: threads may still be inside the driver.
[[noreturn]] void ExitHelper(const HelperServerOptions& options, int status = 0);

}  // namespace stasis::ipc
