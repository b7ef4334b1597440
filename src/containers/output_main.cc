// stasis-container-output: copies a container's output, a pipe on descriptor 0, to a file on
// descriptor 1, until every process has closed the pipe. CRIU can checkpoint a container that
// writes to a pipe, but not one that writes to a file outside of the container. If this program
// ends early, the container gets SIGPIPE at its next output.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace {

// Output that cannot be written, for example to a full disk, is dropped: the container must not
// block.
void Write(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = TEMP_FAILURE_RETRY(::write(STDOUT_FILENO, data, size));
    if (n <= 0) return;
    data += n;
    size -= static_cast<size_t>(n);
  }
}

}  // namespace

int main() {
  // A signal to all processes of a user or a service must not end the container.
  for (const int ignored : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(ignored, SIG_IGN);
  // The file system of a process's working directory cannot be unmounted, so change to "/".
  (void)!::chdir("/");
  static char buffer[64 << 10];
  for (;;) {
    const ssize_t n = TEMP_FAILURE_RETRY(::read(STDIN_FILENO, buffer, sizeof buffer));
    if (n <= 0) return n < 0 ? 1 : 0;
    Write(buffer, static_cast<size_t>(n));
  }
}
