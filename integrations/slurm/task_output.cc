#include "slurm/task_output.h"

namespace stasis::slurm {

Status TaskOutput::Follow(const std::string& path, int target) {
  STASIS_ASSIGN(ErrorOutput file, ErrorOutput::Follow(path));
  files_.push_back({std::move(file), target, false});
  return {};
}

void TaskOutput::AddTo(std::vector<pollfd>& polls) const {
  for (const Followed& one : files_) {
    if (one.copying) {
      polls.push_back({one.target, POLLOUT, 0});
    } else {
      polls.push_back({one.file.fd(), POLLIN, 0});
    }
  }
}

void TaskOutput::Copy() {
  for (Followed& one : files_) one.copying = one.file.Copy(one.target);
}

void TaskOutput::CopyAll(const Deadline& deadline) {
  for (Followed& one : files_) one.file.CopyAll(one.target, deadline);
}

}  // namespace stasis::slurm
