// Memory that one process shares with another through CUDA IPC.
#pragma once

#include <vector>

#include "common/pair.h"

namespace workloads {

class Ipc : public Sharing {
 public:
  CUdeviceptr Give(const Options&, const std::vector<uint32_t>& words, int socket) override {
    words_ = DeviceArray<uint32_t>(words);
    CUipcMemHandle handle;
    CU(cuIpcGetMemHandle(&handle, words_.address()));
    WriteAll(socket, &handle, sizeof handle);
    return words_.address();
  }
  void Free() override { words_.Free(); }

  CUdeviceptr Open(const Options&, int socket) override {
    CUipcMemHandle handle;
    if (!ReadAll(socket, &handle, sizeof handle)) Fail("the child did not start");
    CU(cuIpcOpenMemHandle(&open_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return open_;
  }
  void Close() override { CU(cuIpcCloseMemHandle(open_)); }

 private:
  DeviceArray<uint32_t> words_;
  CUdeviceptr open_ = 0;
};

}  // namespace workloads
