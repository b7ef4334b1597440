// Copies the files to which a task's program writes to the task's own output.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "slurm/error_output.h"

namespace stasis::slurm {

// Not safe to call from several threads.
class TaskOutput {
 public:
  // Copies what is added to a file from now on. The file is created if it is missing. `target`: a
  // descriptor of this process.
  Status Follow(const std::string& path, int target);

  // Adds descriptors that are ready when Copy() has something to do.
  void AddTo(std::vector<pollfd>& polls) const;
  // Copies what the targets take at once.
  void Copy();
  // Copies everything up to the current end, and gives up at the deadline.
  void CopyAll(const Deadline& deadline);

 private:
  struct Followed {
    ErrorOutput file;
    int target = -1;
    bool copying = false;  // there is more than the target takes at once
  };
  std::vector<Followed> files_;
};

// The programs' own output has this long after their end.
inline constexpr std::chrono::seconds kLastWriteLimit{10};

}  // namespace stasis::slurm
