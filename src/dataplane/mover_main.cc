// stasis-mover: copies GPU memory of other programs to and from an arena, for one GPU. It runs
// until the socket that it inherited closes; a resident one also listens on another socket
// (ipc/helper_process.h).
#include "base/descriptor_table.h"
#include "dataplane/mover_server.h"

int main(int argc, char** argv) {
  stasis::ipc::HelperServerOptions options;
  if (!stasis::ipc::EnterHelper(argc, argv, options)) return 2;
  stasis::WidenDescriptorTable();
  stasis::dataplane::ServeMover(options);
}
