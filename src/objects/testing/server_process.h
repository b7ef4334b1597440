// A server for tests: a program that prints its port and exits at end-of-file on stdin.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "base/subprocess.h"

namespace stasis::objects::testing {

class ServerProcess {
 public:
  // Returns nullptr, after a failed expectation, if it does not start.
  static std::shared_ptr<ServerProcess> Start(std::vector<std::string> argv) {
    int in[2];
    int out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return nullptr;
    auto server = std::make_shared<ServerProcess>();
    const UniqueFd child_in(in[0]);
    server->stdin_.Reset(in[1]);
    server->stdout_.Reset(out[0]);
    UniqueFd child_out(out[1]);
    SpawnOptions options;
    options.argv = std::move(argv);
    options.fds = {{0, child_in.get()}, {1, child_out.get()}};
    auto child = Subprocess::Spawn(options);
    if (!child) {
      ADD_FAILURE() << child.error().ToString();
      return nullptr;
    }
    server->child_ = std::move(*child);
    child_out.Reset();
    server->port_ = server->ReadPort();
    EXPECT_GT(server->port_, 0) << "the server did not start";
    return server->port_ > 0 ? server : nullptr;
  }
  ServerProcess() = default;
  ~ServerProcess() {
    stdin_.Reset();
    (void)child_.Wait();
  }

  int port() const { return port_; }
  // Makes the server's script start the server again after it was killed, and waits until it
  // answers. Only for a script that supports this (radosgw.sh).
  bool Restart() { return WriteAll(stdin_.get(), "start\n") && ReadPort() == port_; }
  std::string Url(const std::string& host = "127.0.0.1", const std::string& scheme = "http") const {
    return scheme + "://" + host + ':' + std::to_string(port_);
  }

 private:
  // Returns the port from the first line, or 0 if there is no line. Reads the line to its end: the
  // pipe must not be closed before the server has written the whole line.
  int ReadPort() const {
    std::string line;
    while (line.size() < 32) {
      char c = 0;
      if (::read(stdout_.get(), &c, 1) != 1) return 0;
      if (c == '\n') return std::atoi(line.c_str());
      line += c;
    }
    return 0;
  }

  Subprocess child_;
  UniqueFd stdin_;
  UniqueFd stdout_;
  int port_ = 0;
};

}  // namespace stasis::objects::testing
