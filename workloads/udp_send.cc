// Sends one UDP packet and prints the reply, so that tests need no netcat.
//
//   udp_send [--timeout MS] PORT TEXT        to 127.0.0.1:PORT
//
// Exit codes: 0 the reply is on stdout; 1 no reply in time; 2 usage error.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

namespace {

int Complain(const char* what) {
  fprintf(stderr, "udp_send: %s: %s\n", what, strerror(errno));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int timeout_ms = 5000;
  int next = 1;
  if (argc > 2 && strcmp(argv[1], "--timeout") == 0) {
    timeout_ms = atoi(argv[2]);
    next = 3;
  }
  if (argc - next != 2 || atoi(argv[next]) <= 0 || atoi(argv[next]) > 65535) {
    fprintf(stderr, "usage: udp_send [--timeout MS] PORT TEXT\n");
    return 2;
  }
  const char* text = argv[next + 1];

  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in server{};
  server.sin_family = AF_INET;
  server.sin_port = htons(static_cast<uint16_t>(atoi(argv[next])));
  server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&server), sizeof server) != 0) {
    return Complain("connect");
  }
  if (send(fd, text, strlen(text), 0) < 0) return Complain("send");

  pollfd wait{fd, POLLIN, 0};
  const int ready = poll(&wait, 1, timeout_ms);
  if (ready == 0) {
    fprintf(stderr, "udp_send: no reply in %d ms\n", timeout_ms);
    return 1;
  }
  char reply[1024];
  const ssize_t length = ready < 0 ? -1 : recv(fd, reply, sizeof reply, 0);
  if (length < 0) return Complain("no reply");
  fwrite(reply, 1, static_cast<size_t>(length), stdout);
  return 0;
}
