#include "criu/terminals.h"

#include <cstdint>
#include <set>

#include "base/file.h"
#include "criu/image_entries.h"
#include "criu/tty_info.pb.h"

namespace stasis::criu {
namespace {

constexpr uint32_t kTtyInfo = 0x59453036;
constexpr uint32_t kExternal = 5;  // TtyInfo.type

template <class Entry>
Result<Entry> Parse(const std::string& bytes) {
  Entry entry;
  if (entry.ParseFromString(bytes)) return entry;
  return Fail(Code::kInternal, Domain::kCriu, 0, "an entry does not have the format of CRIU 4");
}

}  // namespace

Status DetachTerminals(const std::string& images_dir) {
  const std::string path = images_dir + "/tty-info.img";
  if (!PathExists(path)) return {};
  std::set<uint32_t> leaders, groups;
  auto note = [&](std::string& bytes) -> Status {
    STASIS_ASSIGN(auto process, Parse<image::PstreeEntry>(bytes));
    if (process.pid() == process.sid()) leaders.insert(process.pid());
    groups.insert(process.pgid());
    return {};
  };
  STASIS_TRY(ChangeEntries(images_dir + "/pstree.img", kPstreeImage, note));
  auto detach = [&](std::string& bytes) -> Status {
    STASIS_ASSIGN(auto terminal, Parse<image::TtyInfo>(bytes));
    if (terminal.type() != kExternal) return {};
    const uint32_t session = terminal.sid(), group = terminal.pgrp();
    const bool led = leaders.contains(session);
    terminal.set_sid(led ? session : 0);
    // A process group that has ended cannot become the foreground group again.
    terminal.set_pgrp(!led ? 0 : groups.contains(group) ? group : session);
    if (terminal.sid() != session || terminal.pgrp() != group) {
      bytes = terminal.SerializeAsString();
    }
    return {};
  };
  return ChangeEntries(path, kTtyInfo, detach);
}

}  // namespace stasis::criu
