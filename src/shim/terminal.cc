#include "shim/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/deadline.h"
#include "base/file.h"
#include "ipc/socket.h"

namespace stasis::shim {
namespace {

constexpr size_t kMostQueued = 1u << 20;   // per client
constexpr size_t kMostRecent = 16u << 10;  // for a new client
constexpr size_t kMostInput = 4u << 10;    // reading from clients stops at this size
constexpr int kMostPortions = 16;          // per call, so that other events are served too
constexpr size_t kMostHeldByKernel = 1u << 20;
constexpr std::chrono::milliseconds kLastWords{1000};  // to send output after the end

Result<UniqueFd> Listen(const std::string& job_folder) {
  STASIS_ASSIGN(UniqueFd folder, stasis::Open(job_folder, O_PATH | O_DIRECTORY));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return FailErrno(errno, "socket");
  STASIS_ASSIGN(const sockaddr_un address, ipc::AddressIn(folder.get(), kTerminalSocket));
  ::unlink(address.sun_path);
  mode_t umask = ::umask(0177);
  int bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  int error = errno;
  ::umask(umask);
  if (bound != 0) return FailErrno(error, "bind a socket in " + job_folder);
  if (::listen(socket.get(), static_cast<int>(kMostClients)) != 0) {
    return FailErrno(errno, "listen");
  }
  return socket;
}

bool MayAttach(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

// Returns the output after its first newline, because the first line may be incomplete.
std::string_view WholeLines(std::string_view output) {
  size_t end = output.find('\n');
  return end == output.npos ? output : output.substr(end + 1);
}

}  // namespace

Result<Terminal> Terminal::Open(const std::string& job_folder, WindowSize size, int log_fd) {
  Terminal terminal;
  terminal.log_fd_ = log_fd;
  // O_NOCTTY: the terminal must not become the controlling terminal of this process.
  constexpr int kFlags = O_RDWR | O_NOCTTY | O_CLOEXEC;
  terminal.master_.Reset(::posix_openpt(kFlags | O_NONBLOCK));
  if (!terminal.master_) return FailErrno(errno, "open a new terminal");
  int unlocked = 0;
  if (::ioctl(terminal.master_.get(), TIOCSPTLCK, &unlocked) != 0) {
    return FailErrno(errno, "unlock a new terminal");
  }
  // Do not open the terminal by name, because /dev/pts may be another file system in this mount
  // namespace.
  terminal.slave_.Reset(::ioctl(terminal.master_.get(), TIOCGPTPEER, kFlags));
  if (!terminal.slave_) return FailErrno(errno, "open the other side of a new terminal");
  terminal.Resize(size);
  terminal.socket_path_ = job_folder + "/" + kTerminalSocket;
  STASIS_ASSIGN(terminal.listener_, Listen(job_folder));
  return terminal;
}

void Terminal::Attach(UniqueFd socket) {
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  clients_.emplace_back().socket = std::move(socket);
}

void Terminal::Remember(std::string_view output) {
  recent_ += output;
  if (recent_.size() > 2 * kMostRecent) recent_.erase(0, recent_.size() - kMostRecent);
}

void Terminal::AddTo(std::vector<pollfd>* waits) const {
  if (!master_) return;
  short wanted = POLLIN;
  if (!input_.empty()) wanted |= POLLOUT;
  waits->push_back({master_.get(), wanted, 0});
  if (listener_) waits->push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) {
    short events = 0;
    // While reading is paused, packets stay in the socket's buffer. When it is full, the client
    // blocks.
    if (&client != holder_ || input_.size() < kMostInput) events |= POLLIN;
    if (!client.queue.empty() || client.skipped != 0) events |= POLLOUT;
    waits->push_back({client.socket.get(), events, 0});
  }
}

void Terminal::Serve() {
  if (!master_) return;
  Accept();
  for (Client& client : clients_) {
    for (int i = 0; i < kMostPortions && ReadFrom(client); ++i) {
    }
  }
  WriteInput();
  for (int i = 0; i < kMostPortions && ReadOutput(); ++i) {
  }
  for (Client& client : clients_) Flush(client);
  ForgetGone();
}

void Terminal::Drain() {
  if (!master_) return;
  // All output of the ended program is available now. Background processes may keep writing, so the
  // number of portions is bounded.
  for (size_t portions = 0; portions < kMostHeldByKernel / kMostPayload && ReadOutput();
       ++portions) {
  }
  // A client's socket buffer may be smaller than the last output, so wait until all of it has been
  // sent. The deadline is for clients that do not read.
  const Deadline deadline = Deadline::In(kLastWords);
  for (;;) {
    std::vector<pollfd> waits;
    for (Client& client : clients_) {
      Flush(client);
      const bool has_more = !client.queue.empty() || client.skipped != 0;
      if (has_more && !client.gone) waits.push_back({client.socket.get(), POLLOUT, 0});
    }
    if (waits.empty() || deadline.passed()) return;
    (void)::poll(waits.data(), waits.size(), deadline.PollTimeout());
  }
}

void Terminal::StopListening() {
  if (!listener_) return;
  ::unlink(socket_path_.c_str());
  listener_.Reset();
}

void Terminal::EndClients() {
  holder_ = nullptr;
  clients_.clear();
}

void Terminal::Accept() {
  if (!listener_) return;
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (!MayAttach(socket.get())) return Refuse(socket.get(), Refusal::kStranger);
  if (clients_.size() >= kMostClients) return Refuse(socket.get(), Refusal::kTooMany);
  Attach(std::move(socket));
}

void Terminal::Refuse(int socket, Refusal why) {
  (void)SendPacket(socket, {.kind = TerminalKind::kRefused, .value = static_cast<uint64_t>(why)},
                   {});
}

bool Terminal::ReadFrom(Client& client) {
  if (client.gone || (&client == holder_ && input_.size() >= kMostInput)) return false;
  char packet[sizeof(TerminalHeader) + kMostPayload];
  ssize_t size = ReceivePacket(client.socket.get(), packet, sizeof packet);
  if (size < 0 && errno == EAGAIN) return false;
  TerminalHeader header;
  // End-of-file or an invalid packet.
  if (size < static_cast<ssize_t>(sizeof header) || size > static_cast<ssize_t>(sizeof packet)) {
    client.gone = true;
    return false;
  }
  std::memcpy(&header, packet, sizeof header);
  if (header.version != kTerminalVersion) {
    Refuse(client.socket.get(), Refusal::kVersion);
    client.gone = true;
    return false;
  }
  std::string_view payload(packet + sizeof header, static_cast<size_t>(size) - sizeof header);
  if (!client.greeted && header.kind == TerminalKind::kHello) {
    Greet(client, header);
  } else if (client.greeted && header.kind == TerminalKind::kInput) {
    if (&client == holder_) input_ += payload;
  } else if (client.greeted && header.kind == TerminalKind::kSize) {
    client.size = DecodeWindowSize(header.value);
    if (&client == holder_) Resize(client.size);
  } else {
    client.gone = true;
  }
  return !client.gone;
}

void Terminal::Greet(Client& client, const TerminalHeader& hello) {
  client.greeted = true;
  client.size = DecodeWindowSize(hello.value);
  client.wants_input = (hello.flags & kWantsInput) != 0;
  if (!Send(client, TerminalKind::kWelcome, 0)) return;
  client.queue = recent_.size() > kMostRecent
                     ? WholeLines(std::string_view(recent_).substr(recent_.size() - kMostRecent))
                     : std::string_view(recent_);
  ChooseHolder();
}

bool Terminal::Send(Client& client, TerminalKind kind, uint64_t value, std::string_view payload) {
  if (SendPacket(client.socket.get(), {.kind = kind, .value = value}, payload)) return true;
  if (errno != EAGAIN && errno != ENOBUFS) client.gone = true;
  return false;
}

void Terminal::Flush(Client& client) {
  if (client.gone) return;
  while (client.taken < client.queue.size()) {
    auto portion = std::string_view(client.queue).substr(client.taken, kMostPayload);
    if (!Send(client, TerminalKind::kOutput, 0, portion)) break;
    client.taken += portion.size();
  }
  if (client.taken == client.queue.size()) {
    client.queue.clear();
    client.taken = 0;
    if (client.skipped != 0 && Send(client, TerminalKind::kSkipped, client.skipped)) {
      client.skipped = 0;
    }
  }
}

void Terminal::ForgetGone() {
  bool any = std::any_of(clients_.begin(), clients_.end(), [](const auto& c) { return c.gone; });
  if (!any) return;
  if (holder_ != nullptr && holder_->gone) holder_ = nullptr;
  clients_.remove_if([](const Client& client) { return client.gone; });
  ChooseHolder();
}

void Terminal::ChooseHolder() {
  auto last = std::find_if(clients_.rbegin(), clients_.rend(), [](const Client& client) {
    return client.greeted && client.wants_input && !client.gone;
  });
  Client* now = last == clients_.rend() ? nullptr : &*last;
  if (now == holder_) return;
  // These packets may get lost, because they only cause a notice on the client's screen.
  if (holder_ != nullptr) Send(*holder_, TerminalKind::kHolder, 0);
  holder_ = now;
  if (holder_ == nullptr) return;
  Send(*holder_, TerminalKind::kHolder, 1);
  Resize(holder_->size);
}

void Terminal::Resize(WindowSize size) {
  winsize window{};
  if (size.rows == 0 || size.columns == 0) return;
  if (::ioctl(master_.get(), TIOCGWINSZ, &window) != 0) return;
  if (window.ws_row != size.rows || window.ws_col != size.columns) {
    window = {size.rows, size.columns, 0, 0};
    ::ioctl(master_.get(), TIOCSWINSZ, &window);
    return;
  }
  // The kernel signals only changes of size, but a client that attaches again needs the screen
  // redrawn.
  pid_t group = 0;
  if (::ioctl(master_.get(), TIOCGPGRP, &group) == 0 && group > 1) ::kill(-group, SIGWINCH);
}

void Terminal::WriteInput() {
  while (!input_.empty()) {
    ssize_t n = TEMP_FAILURE_RETRY(::write(master_.get(), input_.data(), input_.size()));
    if (n <= 0) return;
    input_.erase(0, static_cast<size_t>(n));
  }
}

bool Terminal::ReadOutput() {
  char buffer[kMostPayload];
  ssize_t n = TEMP_FAILURE_RETRY(::read(master_.get(), buffer, sizeof buffer));
  if (n <= 0) return false;
  std::string_view output(buffer, static_cast<size_t>(n));
  WriteToLog(output);
  Remember(output);
  for (Client& client : clients_) {
    if (!client.greeted || client.gone) continue;
    if (client.skipped != 0 || client.queue.size() + output.size() > kMostQueued) {
      client.skipped += output.size();
    } else {
      client.queue += output;
    }
    Flush(client);
  }
  return true;
}

void Terminal::WriteToLog(std::string_view output) {
  if (unlogged_ != 0) {
    std::string note = "\r\n[stasis: " + std::to_string(unlogged_) +
                       " bytes of output could not be written here]\r\n";
    if (!WriteAll(log_fd_, note)) {
      unlogged_ += output.size();
      return;
    }
    unlogged_ = 0;
  }
  if (!WriteAll(log_fd_, output)) unlogged_ += output.size();
}

}  // namespace stasis::shim
