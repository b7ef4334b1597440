#include "process/memory_writer.h"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "base/rights.h"

namespace stasis::process {

// A write to this process itself needs no rights. It fails if a filter of system calls forbids it.
bool VmWriter::MayWrite() {
  if (!HasRight(Right::kTrace)) return false;
  char from = 1, to = 0;
  const iovec local{&from, 1}, remote{&to, 1};
  return ::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

Status VmWriter::Write(HostPid pid, uint64_t address, std::string_view data) const {
  while (!data.empty()) {
    const iovec local{const_cast<char*>(data.data()), data.size()};
    // SAFETY: the kernel checks this address, which belongs to the other process.
    const iovec remote{reinterpret_cast<void*>(address), data.size()};  // NOLINT
    const ssize_t n = ::process_vm_writev(pid.value, &local, 1, &remote, 1, 0);
    if (n <= 0) {
      return FailErrno(n < 0 ? errno : EFAULT,
                       fmt::format("write to memory of process {} at {:#x}", pid.value, address));
    }
    data.remove_prefix(static_cast<size_t>(n));
    address += static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace stasis::process
