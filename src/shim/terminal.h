// The terminal of a job: its side of a pseudo terminal and those who are attached to it. What the
// program writes goes to the log first and then to them; none of them can hold the program up. Not
// thread safe: all of it happens in the shim's one thread.
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
  // A new pair, and a socket in the job's folder, instead of one that a killed shim has left.
  // `log_fd`: where the output goes; it stays the caller's, who keeps it open.
  static Result<Terminal> Open(const std::string& job_folder, WindowSize size, int log_fd);

  Terminal() = default;
  explicit operator bool() const { return master_.valid(); }
  // The program's side. It stays open here: else the other one would say that it was hung up
  // whenever the program has closed its own for a moment.
  int program_side() const { return slave_.get(); }

  // A client that has said its first word already, or is about to.
  void Attach(UniqueFd socket);
  // The end of what the log has, for clients who come before there is more of it.
  void Remember(std::string_view output);

  // What is to be waited for.
  void AddTo(std::vector<pollfd>* waits) const;
  // After any such wait.
  void Serve();
  // Takes what the program had written up to now.
  void Drain();
  // No client more, and no socket. Those who are attached see the end when this is destroyed.
  void StopListening();
  // Lets go of those who are attached.
  void EndClients();

 private:
  struct Client {
    UniqueFd socket;
    bool greeted = false;
    bool wants_input = false;
    bool gone = false;
    WindowSize size;
    std::string queue;     // output that it has not taken yet
    size_t taken = 0;      // of the queue's beginning
    uint64_t skipped = 0;  // bytes behind the queue that it will not get
  };

  void Accept();
  // True: it had something to say, and may have more.
  bool ReadFrom(Client& client);
  void Greet(Client& client, const TerminalHeader& hello);
  void Refuse(int socket, Refusal why);
  bool Send(Client& client, TerminalKind kind, uint64_t value, std::string_view payload = {});
  void Flush(Client& client);
  void ForgetGone();
  // Tells those whom it concerns when another one has the input now.
  void ChooseHolder();
  void Resize(WindowSize size);
  void WriteInput();
  // One portion; false: there was none.
  bool ReadOutput();
  void WriteToLog(std::string_view output);

  UniqueFd master_, slave_, listener_;
  std::string socket_path_;
  int log_fd_ = -1;
  uint64_t unlogged_ = 0;  // bytes that could not be written to the log
  std::list<Client> clients_;
  Client* holder_ = nullptr;
  std::string input_;   // typed, and not taken by the program yet
  std::string recent_;  // the end of the output
};

}  // namespace stasis::shim
