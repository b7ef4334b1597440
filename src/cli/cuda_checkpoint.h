// cuda-checkpoint: a replacement for NVIDIA's tool with the same options, output and exit codes,
// built on api/drop_in.h. docs/cuda-checkpoint.md describes each option, and the differences for
// processes that Stasis has suspended or that run under the agent.
#pragma once

namespace stasis::cli {

// The name under which `stasis` acts as this tool.
inline constexpr char kCudaCheckpoint[] = "cuda-checkpoint";

// Runs the command and returns its exit code. May throw, as all code above libraries.
int CudaCheckpoint(int argc, char** argv);

}  // namespace stasis::cli
