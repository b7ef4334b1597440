// Two programs that share memory through CUDA IPC (common/pair.h).
#include "common/ipc.h"

int main(int argc, char** argv) {
  return workloads::SharingMain(argc, argv, std::make_unique<workloads::Ipc>());
}
