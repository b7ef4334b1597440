// The checks of a restore for other programs that are in its way (RestoreRun).
#include <string>

#include "checks/collisions.h"
#include "checks/nccl_neighbours.h"
#include "checks/readable.h"
#include "operations/restore_run.h"

namespace stasis::operations {

Status RestoreRun::CheckNeighbours(bool dry_run) {
  // CRIU restores a network namespace in the image as a new one, whose ports and sockets cannot
  // conflict with those of this process's namespace.
  for (const auto& file : manifest().files) {
    if (file.path.starts_with("cpu/netns-")) return {};
  }
  auto not_checked = [&](const char* what, const Error& why) -> Status {
    notes_.push_back(std::string(what) + " were not checked: " + why.ToString() + ".");
    return {};
  };
  constexpr char kAll[] = "The program's ports and files, and other jobs that use NCCL,";
  auto files = reader_.OpenFile("cpu/files.img");
  // Files that cannot be read are reported by image-verify, not here.
  if (!files) return not_checked(kAll, files.error());
  auto nccl = checks::HasCommunicators(files->fd.get(), files->size_bytes);
  if (!nccl) return not_checked(kAll, nccl.error());
  if (*nccl) {
    STASIS_TRY(checks::RefuseNcclNeighbours(
        session_.services, manifest(), map_,
        "suspend the other job first, without --keep-context, or end it"));
  }
  auto names = criu::ReadRestoredNames(files->fd.get(), files->size_bytes);
  if (!names) return not_checked("The program's ports and files", names.error());
  if (options_.new_pidns && makes_cpu_files()) {
    // Each pid namespace gets its own (criu::SetPidNamespace).
    std::erase_if(names->unix_sockets, [](const auto& socket) { return socket.IsOfDriver(); });
  }
  STASIS_TRY(CheckNames(*names, dry_run));
  ports_ = std::move(names->tcp);
  return {};
}

Status RestoreRun::CheckNames(const criu::RestoredNames& names, bool dry_run) {
  // Claims come before checks: a restore that ends in between has claimed the names, or has bound
  // them.
  if (!dry_run) {
    STASIS_ASSIGN(names_taken_,
                  checks::NameClaims::Open(session_.services.paths.run + "/restored-names.lock"));
    STASIS_TRY(names_taken_->Claim(names));
  }
  // In a migration to the same machine, the program that has the names is the stopped original.
  if (options_.before_adopt) return {};
  STASIS_TRY(checks::CheckSocketNamesFree(names));
  // Without a new pid namespace, the pids are free and so the program cannot run twice.
  if (!options_.new_pidns || options_.share_files) return {};
  std::vector<std::string> written;
  for (const std::string& path : names.written_files) {
    // Its output goes to the job's log.
    const auto& all = manifest().externals;
    if (std::none_of(all.begin(), all.end(), [&](const auto& e) { return e.path == path; })) {
      written.push_back(path);
    }
  }
  auto check = [&] {
    return checks::CheckFilesNotWritten(
        written, checks::ReadingDeadline(session_.services.settings.phase_timeout_s));
  };
  const auto files = check();
  if (!files && files.error().code == Code::kDeadlineExceeded) {
    notes_.push_back("Not all processes were checked for files that the program writes: " +
                     files.error().ToString() + ".");
    return {};
  }
  if (!files) return Fail(files.error());
  if (!names_taken_ || files->empty()) return {};
  for (const auto& file : *files) STASIS_TRY(names_taken_->ClaimFile(file.identity, file.path));
  // The check came before the claim.
  return check().map([](const auto&) {});
}

}  // namespace stasis::operations
