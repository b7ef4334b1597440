#include "operations/session.h"

#include <fmt/format.h>

#include "base/descriptor_table.h"
#include "checks/survey.h"

namespace stasis::operations {
namespace {

// A program that keeps starting and ending processes may change during any attempt.
constexpr int kAttempts = 4;

}  // namespace

Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas) {
  (void)RaiseDescriptorLimit();
  STASIS_ASSIGN(plan::Journal journal, plan::Journal::Prepare(paths, verb));
  Session session;
  session.journal = std::make_shared<plan::Journal>(std::move(journal));
  session.services = gpu_state::MakeServices(paths, settings, stasis_version, keep_arenas,
                                             session.journal->lock_fd());
  return session;
}

Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation) {
  bool to_store = false;
  auto run = [&]() -> Result<OperationResult> {
    STASIS_ASSIGN(Session session, OpenSession(paths, settings, verb, stasis_version));
    session.cpu_memory_to_store = to_store;
    auto result = operation(session);
    to_store |= !result && checks::IsCpuMemoryNotReceived(result.error());
    return result;
  };
  auto should_retry = [](const Result<OperationResult>& result) {
    return !result && !result.error().not_undone &&
           (checks::TreeHasChanged(result.error()) ||
            checks::IsCpuMemoryNotReceived(result.error()));
  };
  Result<OperationResult> result = run();
  if (!should_retry(result)) return result;
  const std::string first_change = result.error().message;
  for (int attempt = 2; should_retry(result) && attempt <= kAttempts; ++attempt) result = run();
  if (result) {
    result->notes.push_back(first_change + ", so the operation was rolled back and repeated");
  } else if (should_retry(result)) {
    result.error().message +=
        fmt::format("; the program changed in each of {} attempts", kAttempts);
    result.error().hint =
        "Everything is as it was before. Try again when the program does not keep starting and "
        "ending processes.";
  }
  return result;
}

}  // namespace stasis::operations
