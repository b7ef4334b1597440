// Writes to the memory of another process.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Safe to call from any thread.
class MemoryWriter {
 public:
  virtual ~MemoryWriter() = default;
  // Writes to an address of the process, which must have memory mapped for writing there.
  virtual Status Write(HostPid pid, uint64_t address, std::string_view data) const = 0;
};

// Uses process_vm_writev, which needs the right to trace the process.
class VmWriter final : public MemoryWriter {
 public:
  // Returns true if this process may write to the memory of every process of the machine.
  static bool MayWrite();
  Status Write(HostPid pid, uint64_t address, std::string_view data) const override;
};

}  // namespace stasis::process
