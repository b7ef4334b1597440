// stasis-device-helper: the only Stasis process that calls the driver for device control. It
// runs until the socket that it inherited closes; a resident one also listens on another socket
// (ipc/helper_process.h). It allocates nothing on a GPU.
#include "device/cuda/helper_server.h"

int main(int argc, char** argv) {
  stasis::ipc::HelperServerOptions options;
  if (!stasis::ipc::EnterHelper(argc, argv, options)) return 2;
  stasis::device::cuda::Serve(options);
}
