#include "criu/credentials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/file.h"
#include "criu/core.pb.h"
#include "criu/image_entries.h"

namespace stasis::criu {
namespace {

constexpr uint32_t kCore = 0x55053847;

// Checks or changes the credentials of a thread. Returns true if it changed them.
using Look = std::function<Result<bool>(image::Creds&)>;

Status LookAtThread(std::string& entry, const Look& look) {
  image::Core core;
  if (!core.ParseFromString(entry)) {
    return Fail(Code::kInternal, Domain::kCriu, 0, "an entry does not have the format of CRIU 4");
  }
  // The thread had already ended when the program was dumped.
  if (!core.has_thread_core()) return {};
  // Without credentials here CRIU would read them from a file of an older format.
  if (!core.thread_core().has_creds()) {
    return Fail(Code::kPermissionDenied, "the image has no credentials for one of its threads",
                "no supported version of CRIU writes such an image; dump the program again");
  }
  STASIS_ASSIGN(bool changed, look(*core.mutable_thread_core()->mutable_creds()));
  if (changed) entry = core.SerializeAsString();
  return {};
}

Status ForEachThread(const std::string& images_dir, const Look& look) {
  STASIS_ASSIGN(auto names, ListDir(images_dir));
  bool any = false;
  for (const std::string& name : names) {
    if (!name.starts_with("core-") || !name.ends_with(".img")) continue;
    any = true;
    STASIS_TRY(ChangeEntries(images_dir + "/" + name, kCore,
                             [&](std::string& entry) { return LookAtThread(entry, look); }));
  }
  if (any) return {};
  return Fail(Code::kDataLoss, images_dir + " has no process");
}

tl::unexpected<Error> NotYours(const std::string& what) {
  return Fail(Code::kPermissionDenied, "you may not restore this image: " + what,
              "restore it as the user and with the groups that it was dumped with, or as root");
}

Status CheckIds(const image::Creds& creds, const Caller& caller) {
  for (uid_t uid : {creds.uid(), creds.euid(), creds.suid(), creds.fsuid()}) {
    if (uid == caller.uid) continue;
    return NotYours(
        fmt::format("one of its threads runs as user {}, and you are user {}", uid, caller.uid));
  }
  for (gid_t gid : {creds.gid(), creds.egid(), creds.sgid(), creds.fsgid()}) {
    if (caller.groups.contains(gid)) continue;
    return NotYours(fmt::format("one of its threads is in group {}, but you are not", gid));
  }
  for (gid_t gid : creds.groups()) {
    if (caller.groups.contains(gid)) continue;
    return NotYours(fmt::format("one of its threads is in group {}, but you are not", gid));
  }
  for (const auto* words :
       {&creds.cap_prm(), &creds.cap_eff(), &creds.cap_inh(), &creds.cap_amb()}) {
    if (std::all_of(words->begin(), words->end(), [](uint32_t word) { return word == 0; }))
      continue;
    return NotYours(
        fmt::format("one of its threads has capabilities ({:08x})", fmt::join(*words, " ")));
  }
  return {};
}

Look Fit(const Caller& caller) {
  return [&caller](image::Creds& creds) -> Result<bool> {
    STASIS_TRY(CheckIds(creds, caller));
    // CRIU would drop the capabilities that are missing from this set, but it lacks the capability
    // that it needs to do so.
    for (uint32_t& word : *creds.mutable_cap_bnd()) word = ~0u;
    return true;
  };
}

}  // namespace

Status FitToCaller(const std::string& images_dir, const Caller& caller) {
  return ForEachThread(images_dir, Fit(caller));
}

Result<std::string> FittedThread(const std::string& bytes, const Caller& caller) {
  return ChangedEntries(bytes, kCore, "the thread",
                        [&](std::string& entry) { return LookAtThread(entry, Fit(caller)); });
}

Result<uid_t> FindForeignUser(const std::string& images_dir) {
  uid_t found = 0;
  STASIS_TRY(ForEachThread(images_dir, [&](image::Creds& creds) -> Result<bool> {
    for (uid_t uid : {creds.uid(), creds.euid(), creds.suid(), creds.fsuid()}) {
      if (uid != 0 && found == 0) found = uid;
    }
    return false;
  }));
  return found;
}

}  // namespace stasis::criu
