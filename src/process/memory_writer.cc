#include "process/memory_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/rights.h"

namespace stasis::process {

bool MemWriter::MayWrite() { return ::geteuid() == 0 && HasRight(Right::kTrace); }

Status MemWriter::Open(const ProcessId& process) {
  auto file = stasis::Open(fmt::format("/proc/{}/mem", process.pid.value), O_WRONLY);
  // If the process has ended, the file may be that of a later process with its id.
  if (!IsAlive(process)) {
    return Fail(Code::kUnavailable, fmt::format("process {} has ended", process.pid.value));
  }
  STASIS_ASSIGN(files_[process.pid], std::move(file));
  return {};
}

Status MemWriter::Write(HostPid pid, uint64_t address, std::string_view data) const {
  const int fd = files_.at(pid).get();
  while (!data.empty()) {
    // SAFETY: the kernel checks this address, which belongs to the other process.
    const ssize_t n =
        TEMP_FAILURE_RETRY(::pwrite(fd, data.data(), data.size(), static_cast<off_t>(address)));
    // The kernel does not say why it wrote less.
    if (n == 0) {
      return Fail(Code::kUnavailable, fmt::format("process {} has ended, or has no memory at {:#x}",
                                                  pid.value, address));
    }
    if (n < 0) {
      return FailErrno(errno,
                       fmt::format("write to memory of process {} at {:#x}", pid.value, address));
    }
    data.remove_prefix(static_cast<size_t>(n));
    address += static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace stasis::process
