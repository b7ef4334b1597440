// Checks what CRIU's plugin for AMD GPUs has done. CRIU 4.2.1 succeeds after some errors of the
// plugin, which are then in its log only: options.cc asks for a log that has them.
//
// Functions without state. Safe to call from any thread.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace stasis::criu {

// Call when CRIU has notified post-dump. Checks that the image has the GPU state of this number of
// processes, and that the plugin has logged no error: it loses errors when it continues a process's
// queues. Fails if the log cannot be read.
Status CheckPluginDump(const std::string& images_dir, const std::string& log_path,
                       size_t processes);

// Checks that the plugin could resume the devices of all restored processes. Fails if the log
// cannot be read.
Status CheckPluginRestore(const std::string& log_path);

}  // namespace stasis::criu
