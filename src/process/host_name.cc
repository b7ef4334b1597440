#include "process/host_name.h"

#include <sys/utsname.h>

namespace stasis::process {

std::string HostName() {
  utsname names{};
  if (::uname(&names) != 0) return "";
  std::string name = names.nodename;
  for (char& c : name) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\\') c = '?';
  }
  return name;
}

}  // namespace stasis::process
