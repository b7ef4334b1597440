// The interface of CRIU that operations use. client.h and inside.h implement sessions. MakeCriu()
// returns the CRIU of this machine.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/client.h"

namespace stasis::criu {

// Finds and starts CRIU. Thread-safe.
class Criu {
 public:
  virtual ~Criu() = default;
  // See probe.h.
  virtual Status CheckPrivileges() = 0;
  virtual Result<std::string> Find(const std::string& named) = 0;
  virtual Result<std::string> Version(const std::string& named, const Deadline& deadline) = 0;
  // Starts the CRIU at `path` for a dump. With `inside`, it works in the pid namespace of
  // `request.pid`. CRIU keeps the descriptors in `fds` open until it exits; the key of each is its
  // number in CRIU.
  virtual Result<std::unique_ptr<CriuSession>> StartDump(const std::string& path,
                                                         const DumpRequest& request, bool inside,
                                                         const std::map<int, int>& fds,
                                                         const Deadline& deadline) = 0;
};
std::shared_ptr<Criu> MakeCriu();

}  // namespace stasis::criu
