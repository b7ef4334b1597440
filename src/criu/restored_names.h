// The names that a restored program takes: ports, names of Unix sockets, and files that it writes.
// Another program may have them, for example one that was restored from the same image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "criu/tcp_ports.h"

namespace stasis::criu {

struct UnixName {
  std::string name;  // as the kernel reports it: "/run/x.sock", "x.sock" or "@abstract"
  std::string path;  // absolute; empty if the name is abstract

  // Returns true for the CUDA driver's own socket, "@cuda-uvmfd-NAMESPACE-PID", with the number of
  // the process's pid namespace.
  bool IsOfDriver() const;

  auto operator<=>(const UnixName&) const = default;
};

struct RestoredNames {
  // Those of sockets that listen or are only bound. Excludes connections, whose ports CRIU takes by
  // TCP_REPAIR.
  std::vector<InetPort> tcp;
  // Those of all bound sockets. CRIU binds connected ones too.
  std::vector<InetPort> udp;
  // Those of sockets to which others can connect or send.
  std::vector<UnixName> unix_sockets;
  // Paths of files that are open or mapped for writing, except those that are only appended to.
  // They include devices, and files that no longer exist.
  std::vector<std::string> written_files;
};

// Reads the names from CRIU's files.img, each once. Returns kInternal if the format is not that of
// CRIU 4.
Result<RestoredNames> ReadRestoredNames(int files_img, uint64_t size_bytes);

// Writes the number of a pid namespace (process::ReadNamespace) into the names of the driver's
// sockets in files.img, durably. Without this, copies of a program in one network namespace would
// need the same name.
Status SetPidNamespace(const std::string& images_dir, uint64_t number);

}  // namespace stasis::criu
