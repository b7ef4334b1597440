#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void stasis_frame_init(struct stasis_criu_frame* frame, enum stasis_criu_kind kind, int pid,
                       int value) {
  memset(frame, 0, sizeof *frame);
  frame->magic = STASIS_CRIU_MAGIC;
  frame->version = STASIS_CRIU_VERSION;
  frame->kind = (uint16_t)kind;
  frame->pid = pid;
  frame->value = value;
}

int stasis_send(int socket, const struct stasis_criu_frame* frame, int fd) {
  struct iovec bytes = {(void*)frame, sizeof *frame};
  union {
    struct cmsghdr align;
    char space[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
  if (fd >= 0) {
    memset(&control, 0, sizeof control);
    message.msg_control = control.space;
    message.msg_controllen = sizeof control.space;
    struct cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)sizeof *frame ? 0 : -1;
}

int stasis_receive(int socket, struct stasis_criu_frame* frame) {
  ssize_t size;
  do {
    size = recv(socket, frame, sizeof *frame, 0);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return -1;
  if (size == 0) {
    errno = ECONNRESET;
    return -1;
  }
  if (size != (ssize_t)sizeof *frame || frame->magic != STASIS_CRIU_MAGIC ||
      frame->length > STASIS_CRIU_TEXT) {
    errno = EPROTO;
    return -1;
  }
  /* Thread ids may fill the whole text. */
  if (frame->kind != STASIS_CRIU_THREAD_IDS) {
    frame->text[frame->length < STASIS_CRIU_TEXT ? frame->length : STASIS_CRIU_TEXT - 1] = '\0';
  }
  return 0;
}

int stasis_frame_text(struct stasis_criu_frame* frame, const char* text) {
  const size_t length = strlen(text);
  if (length >= sizeof frame->text) return -1;
  memcpy(frame->text, text, length);
  frame->length = (uint32_t)length;
  return 0;
}

int stasis_ask(int socket, enum stasis_criu_kind kind, int pid, int value, int fd,
               struct stasis_criu_frame* answer) {
  struct stasis_criu_frame request;
  stasis_frame_init(&request, kind, pid, value);
  return stasis_exchange(socket, &request, fd, answer);
}

static int no_answer(struct stasis_criu_frame* answer, int error) {
  stasis_frame_init(answer, STASIS_CRIU_REFUSED, 0, 0);
  snprintf(answer->text, sizeof answer->text,
           error == ECONNRESET || error == EPIPE
               ? "the process of Stasis that does this has ended; the daemon's log says why, if "
                 "there is a daemon"
               : "the connection to Stasis has failed: %s",
           strerror(error));
  return STASIS_CRIU_REFUSED;
}

int stasis_answer(int socket, struct stasis_criu_frame* answer) {
  if (stasis_receive(socket, answer) != 0) return no_answer(answer, errno);
  const bool known = answer->kind == STASIS_CRIU_REFUSED || answer->version == STASIS_CRIU_VERSION;
  return known ? answer->kind : no_answer(answer, EPROTO);
}

int stasis_exchange(int socket, const struct stasis_criu_frame* request, int fd,
                    struct stasis_criu_frame* answer) {
  if (stasis_send(socket, request, fd) != 0) return no_answer(answer, errno);
  return stasis_answer(socket, answer);
}
