#include "criu/task_ids.h"

#include "criu/image_entries.h"
#include "criu/tty_info.pb.h"

namespace stasis::criu {

Result<std::set<pid_t>> ReadTaskIds(int pstree_img, uint64_t size_bytes, bool shell_job) {
  std::set<pid_t> ids, inherited;
  auto add = [&](const std::string& bytes) -> Status {
    image::PstreeEntry process;
    if (!process.ParseFromString(bytes)) {
      return Fail(Code::kInternal, Domain::kCriu, 0,
                  "pstree.img does not have the format of CRIU 4");
    }
    auto insert = [&](uint32_t id) {
      if (!inherited.contains(static_cast<pid_t>(id))) ids.insert(static_cast<pid_t>(id));
    };
    // The root is the first entry.
    if (shell_job && ids.empty()) {
      for (uint32_t id : {process.pgid(), process.sid()}) {
        if (id != process.pid()) inherited.insert(static_cast<pid_t>(id));
      }
    }
    for (uint32_t id : {process.pid(), process.pgid(), process.sid()}) insert(id);
    for (uint32_t id : process.threads()) insert(id);
    return {};
  };
  STASIS_TRY(ReadEntries(pstree_img, size_bytes, kPstreeImage, "pstree.img", add));
  ids.erase(0);  // of a pid namespace outside
  return ids;
}

}  // namespace stasis::criu
