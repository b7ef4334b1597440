#include "operations/session.h"

#include "checks/survey.h"
#include "gpu_state/shared_lots.h"

namespace stasis::operations {

Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas) {
  gpu_state::RaiseDescriptorLimit();
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
  auto run = [&]() -> Result<OperationResult> {
    STASIS_ASSIGN(Session session, OpenSession(paths, settings, verb, stasis_version));
    return operation(session);
  };
  auto again = [](const Result<OperationResult>& result) {
    return !result && checks::TreeHasChanged(result.error()) && !result.error().not_undone;
  };
  auto first = run();
  if (!again(first)) return first;
  auto second = run();
  if (second) {
    second->notes.push_back(first.error().message + ", so it was undone and done once more");
  } else if (again(second)) {
    second.error().message += "; and so it was when it was tried before";
    second.error().hint =
        "Everything is as it was before. Try again when it does not start and end "
        "processes all the time.";
  }
  return second;
}

}  // namespace stasis::operations
