// The terminal of a job: the master side of a pseudo terminal and its attached clients. Output goes
// to the log first, then to the clients; a slow client does not block the program. Not thread-safe;
// used by the shim's only thread.
#pragma once

#include <poll.h>

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "shim/terminal_protocol.h"

namespace stasis::shim {

class Terminal {
 public:
  // Creates a pseudo terminal, and a socket in the job's directory that replaces one left by a
  // killed shim. Output goes to `log_fd`, which the caller must keep open.
  static Result<Terminal> Open(const std::string& job_folder, WindowSize size, int log_fd);

  Terminal() = default;
  explicit operator bool() const { return master_.valid(); }
  // The program's side. It stays open here; otherwise the master side would report a hangup
  // whenever the program closes its side for a moment.
  int program_side() const { return slave_.get(); }

  // Adds a client, which has sent its first packet or is about to send it.
  void Attach(UniqueFd socket);
  // Appends to the recent output, which new clients get first.
  void Remember(std::string_view output);

  // Appends the descriptors to poll.
  void AddTo(std::vector<pollfd>* waits) const;
  // Call after each poll.
  void Serve();
  // Reads the output that the program has written so far.
  void Drain();
  // Accepts no more clients and removes the socket. Attached clients see end-of-file when this
  // object is destroyed.
  void StopListening();
  // Disconnects all clients.
  void EndClients();

 private:
  struct Client {
    UniqueFd socket;
    bool greeted = false;
    bool wants_input = false;
    bool gone = false;
    WindowSize size;
    std::string queue;     // output not yet sent
    size_t taken = 0;      // bytes already sent from the front of the queue
    uint64_t skipped = 0;  // bytes after the queue that were dropped
  };

  void Accept();
  // Returns true if a packet was read and more may follow.
  bool ReadFrom(Client& client);
  void Greet(Client& client, const TerminalHeader& hello);
  void Refuse(int socket, Refusal why);
  bool Send(Client& client, TerminalKind kind, uint64_t value, std::string_view payload = {});
  void Flush(Client& client);
  void ForgetGone();
  // Chooses the client that has the input, and informs the clients concerned.
  void ChooseHolder();
  void Resize(WindowSize size);
  void WriteInput();
  // Reads one portion. Returns false if there was none.
  bool ReadOutput();
  void WriteToLog(std::string_view output);

  UniqueFd master_, slave_, listener_;
  std::string socket_path_;
  int log_fd_ = -1;
  uint64_t unlogged_ = 0;  // bytes that could not be written to the log
  std::list<Client> clients_;
  Client* holder_ = nullptr;
  std::string input_;   // input that the program has not yet read
  std::string recent_;  // the end of the output
};

}  // namespace stasis::shim
