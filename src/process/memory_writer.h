// Writes to the memory of other processes.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

class MemoryWriter {
 public:
  virtual ~MemoryWriter() = default;
  // Required before Write to that process. Not safe to call beside Write.
  virtual Status Open(const ProcessId& process) = 0;
  // Writes to an address of the process, which must have memory mapped for writing there. Safe to
  // call from any thread.
  virtual Status Write(HostPid pid, uint64_t address, std::string_view data) const = 0;
};

// Writes through /proc/PID/mem. The open file belongs to the memory, not to the process id: after
// the end of the process a write fails, and never reaches another process with the same id.
class MemWriter final : public MemoryWriter {
 public:
  // Returns true if this process may write to the memory of every process of the machine. Only
  // root uses this: an ordinary user controls the processes around a restore.
  static bool MayWrite();
  Status Open(const ProcessId& process) override;
  Status Write(HostPid pid, uint64_t address, std::string_view data) const override;

 private:
  std::map<HostPid, UniqueFd> files_;
};

}  // namespace stasis::process
