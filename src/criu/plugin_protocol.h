/* The protocol between CRIU's plugin (integrations/criu) and stasisd. It is written in C, because
 * the plugin links libc only. integrations/criu/README.md describes the order of the requests. The
 * plugin of a restore by Stasis (restore_plugin.c) and Stasis use BEGIN_RESTORE, RESUME, RUNNING
 * and their answers.
 *
 * Each packet of the SOCK_SEQPACKET connection is one frame of fixed size, in host byte order. The
 * plugin and its action script send requests. The daemon answers each request before the next one.
 * The first frame of a connection carries the descriptor of CRIU's image folder (SCM_RIGHTS),
 * except from restore_plugin.c.
 *
 *   bytes 0-3    magic      STASIS_CRIU_MAGIC
 *         4-5    version    STASIS_CRIU_VERSION of the sender
 *         6-7    kind       enum stasis_criu_kind
 *         8-11   pid        a process, in CRIU's pid namespace
 *        12-15   value      depends on the kind
 *        16-19   length     bytes used of `text`
 *        20-     text       UTF-8 without NUL, or int32 thread ids; the rest is zero
 *
 * Magic, version, kind and text have the same offsets in all versions, so that each side can reject
 * another version with a message. */
#pragma once

#include <stdint.h>

#define STASIS_CRIU_MAGIC 0x52435453u /* "STCR" */
#define STASIS_CRIU_VERSION 1
#define STASIS_CRIU_TEXT 4076
#define STASIS_CRIU_SOCKET "/run/stasisd/criu.sock"
#define STASIS_CRIU_THREADS (STASIS_CRIU_TEXT / 4)
/* Environment variable of the action script: the number in CRIU of the connection's descriptor. */
#define STASIS_CRIU_LEASE "STASIS_CRIU_LEASE"
/* Environment variable of a CRIU that Stasis starts for a restore: the number of the descriptor of
 * the connection to Stasis. */
#define STASIS_CRIU_CONNECTION "STASIS_CRIU_CONNECTION"
/* The folder, in CRIU's image folder, that contains the GPU data as a Stasis image. */
#define STASIS_CRIU_FOLDER "stasis"

/* Environment variable of CRIU for a restore: "OLD=NEW,…", as for `stasis restore --gpu-map`. */
#define STASIS_CRIU_GPU_MAP "STASIS_GPU_MAP"
/* The mask of STASIS_CRIU_BEGIN_RESTORE has one bit for each N below this (/dev/nvidiaN). */
#define STASIS_CRIU_MINORS 30
#define STASIS_CRIU_REFUSES_UVM (1 << 30)

enum stasis_criu_kind {
  /* Requests. */
  STASIS_CRIU_BEGIN_DUMP = 1, /* init() of a dump; with the image folder */
  STASIS_CRIU_BEGIN_RESTORE,  /* init() of a restore; with the image folder. text: the GPU map;
                                 value: bit N is set if the container cannot use /dev/nvidiaN,
                                 STASIS_CRIU_REFUSES_UVM if it cannot use /dev/nvidia-uvm */
  STASIS_CRIU_PAUSE,          /* suspend the tree of `pid`; value: enum stasis_criu_end */
  STASIS_CRIU_CHECK,          /* check that process `pid`, which CRIU holds, uses no GPU */
  STASIS_CRIU_COMMIT,         /* post-dump: complete the GPU data */
  STASIS_CRIU_RESTORED,       /* post-restore: the tree of `pid` exists and has not run */
  STASIS_CRIU_RESUME,         /* the tree of `pid` is stopped at the end of its restore */
  STASIS_CRIU_RUNNING,        /* the threads of the last STASIS_CRIU_THREAD_IDS run */
  STASIS_CRIU_END,            /* fini() or post-resume; value: 1 if the program stays alive */
  STASIS_CRIU_COMPLETE,       /* at CRIU's exit; answered when the GPU data is complete */
  /* Answers. */
  STASIS_CRIU_OK = 64,
  STASIS_CRIU_NO_GPU,     /* the program does not use a GPU: nothing will be done */
  STASIS_CRIU_REFUSED,    /* text: why */
  STASIS_CRIU_THREAD_IDS, /* text: threads to let run; value: 1 if more frames follow. The plugin
                             sends STASIS_CRIU_RUNNING, and stops them when that is answered */
};

/* What CRIU does with the program after a dump. */
enum stasis_criu_end {
  STASIS_CRIU_ENDS,
  STASIS_CRIU_STAYS,       /* it will be left running */
  STASIS_CRIU_STAYS_EARLY, /* likewise, and the GPU data may be incomplete until COMPLETE */
};

/* NOLINTNEXTLINE(readability-identifier-naming): C */
struct stasis_criu_frame {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  int32_t pid;
  int32_t value;
  uint32_t length;
  char text[STASIS_CRIU_TEXT];
};
