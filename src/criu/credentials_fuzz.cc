// Fuzzes a thread in CRIU's images (core-*.img), which a user may have written.
#include "criu/credentials.h"

#include <algorithm>
#include <cstring>

#include "base/fuzz_input.h"
#include "criu/core.pb.h"
#include "criu/image_entries.h"

namespace {

constexpr uint32_t kCore = 0x55053847;

// Checks that an accepted thread belongs to the caller and has no capability.
void CheckThread(const std::string& entry, const stasis::Caller& caller) {
  stasis::criu::image::Core core;
  stasis::FuzzCheck(core.ParseFromString(entry));
  if (!core.has_thread_core()) return;
  stasis::FuzzCheck(core.thread_core().has_creds());
  const auto& creds = core.thread_core().creds();
  for (uint32_t uid : {creds.uid(), creds.euid(), creds.suid(), creds.fsuid()}) {
    stasis::FuzzCheck(uid == caller.uid);
  }
  for (uint32_t gid : {creds.gid(), creds.egid(), creds.sgid(), creds.fsgid()}) {
    stasis::FuzzCheck(caller.groups.contains(gid));
  }
  for (uint32_t gid : creds.groups()) stasis::FuzzCheck(caller.groups.contains(gid));
  for (const auto* words :
       {&creds.cap_prm(), &creds.cap_eff(), &creds.cap_inh(), &creds.cap_amb()}) {
    stasis::FuzzCheck(std::all_of(words->begin(), words->end(), [](auto w) { return w == 0; }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis;
  const Caller caller{4001, {4001}};
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  auto fitted = criu::FittedThread(bytes, caller);
  if (!fitted) return 0;
  Status read = criu::ChangedEntries(*fitted, kCore, "it", [&](std::string& entry) -> Status {
                  CheckThread(entry, caller);
                  return {};
                }).transform([](const std::string&) {});
  FuzzCheck(read.has_value());
  auto again = criu::FittedThread(*fitted, caller);
  FuzzCheck(again && *again == *fitted);
  return 0;
}
