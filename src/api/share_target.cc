#include "api/share_target.h"

namespace stasis::api {
namespace {

bool IsPid(const std::string& target) {
  return !target.empty() && target.size() < 10 &&
         target.find_first_not_of("0123456789") == target.npos;
}

std::string FindByPid(process::HostPid pid, const SharedPrograms& programs) {
  // The programs know their roots and GPU processes only, and the target may be between them.
  for (process::HostPid one : programs.lineage_of(pid)) {
    if (std::string id = programs.of_process(one); !id.empty()) return id;
  }
  return "";
}

std::string FindByJob(const std::vector<std::string>& keys, const std::string& job,
                      const SharedPrograms& programs) {
  for (const std::string& key : keys) {
    if (std::string id = key + "/" + job; programs.is_shared(id)) return id;
  }
  return "";
}

}  // namespace

std::string FindShared(const Caller& caller, const std::vector<std::string>& keys,
                       const std::string& target, const SharedPrograms& programs) {
  const std::string id =
      IsPid(target) ? FindByPid({std::stoi(target)}, programs) : FindByJob(keys, target, programs);
  if (id.empty()) return "";
  const auto owner = programs.owner_of(id);
  return owner && MayManage(caller, *owner) ? id : "";
}

}  // namespace stasis::api
