/* One side of the protocol in src/criu/plugin_protocol.h, for the plugin and its action script. */
#pragma once

#include "criu/plugin_protocol.h"

/* Fills in `frame`. */
void stasis_frame_init(struct stasis_criu_frame* frame, enum stasis_criu_kind kind, int pid,
                       int value);

/* Sends `frame`, with the descriptor `fd` unless it is -1. Returns 0, or -1 with errno. */
int stasis_send(int socket, const struct stasis_criu_frame* frame, int fd);

/* Waits for one frame. Returns 0, or -1 with errno; ECONNRESET if the daemon's worker has ended,
 * EPROTO if the frame is invalid. The text of a valid frame ends with a NUL. */
int stasis_receive(int socket, struct stasis_criu_frame* frame);

/* Sets the text of `frame`. Returns 0, or -1 if the text is too long. */
int stasis_frame_text(struct stasis_criu_frame* frame, const char* text);

/* Sends a request and waits for its answer. Returns the answer's kind. If there is no valid answer,
 * returns STASIS_CRIU_REFUSED with the reason as the answer's text. */
int stasis_exchange(int socket, const struct stasis_criu_frame* request, int fd,
                    struct stasis_criu_frame* answer);
/* The second part of stasis_exchange(). */
int stasis_answer(int socket, struct stasis_criu_frame* answer);
int stasis_ask(int socket, enum stasis_criu_kind kind, int pid, int value, int fd,
               struct stasis_criu_frame* answer);
