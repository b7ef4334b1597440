#include "criu/criu.h"

#include "criu/inside.h"
#include "criu/probe.h"

namespace stasis::criu {
namespace {

class RealCriu final : public Criu {
 public:
  Status CheckPrivileges() override { return criu::CheckPrivileges(); }
  Result<std::string> Find(const std::string& named) override { return FindCriu(named); }
  Result<std::string> Version(const std::string& named, const Deadline& deadline) override {
    return FoundVersion(named, deadline);
  }
  Result<std::unique_ptr<CriuSession>> StartDump(const std::string& path,
                                                 const DumpRequest& request, bool inside,
                                                 const std::map<int, int>& fds,
                                                 const Deadline& deadline) override {
    STASIS_ASSIGN(Session session, inside ? Inside::Spawn(path, request, request.pid, fds, deadline)
                                          : Session::Spawn(path, fds, request.options.plugins,
                                                           request.options.tcp == Tcp::kKeep));
    return std::make_unique<Session>(std::move(session));
  }
};

}  // namespace

std::shared_ptr<Criu> MakeCriu() { return std::make_shared<RealCriu>(); }

}  // namespace stasis::criu
