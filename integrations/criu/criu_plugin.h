/* CRIU's plugin ABI, version 0.2, without CRIU's headers. */
#pragma once

enum { HOOK_RESUME_DEVICES_LATE = 9, HOOK_PAUSE_DEVICES = 10, HOOK_CHECKPOINT_DEVICES = 11 };
enum { HOOKS = 12 }; /* of CRIU 4.0. Later versions load a plugin with as many hooks, too */
enum { STAGE_DUMP, STAGE_PRE_DUMP, STAGE_RESTORE };
enum { PLUGIN_VERSION = 2 << 8 };

struct plugin_descriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int ret);
  unsigned int version;
  unsigned int max_hooks;
  void* hooks[HOOKS];
};
