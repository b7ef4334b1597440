// Encodes and parses the files in a job's directory. Every field is bounded and checked: a record
// that is damaged or of a later version is an error, never part of a job.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "jobs/job.h"

namespace stasis::jobs {

inline constexpr size_t kMaxRecordBytes = 16u << 10;
inline constexpr size_t kMaxArgumentListBytes = 8u << 20;  // the kernel accepts 2 MiB
inline constexpr size_t kMaxArguments = 1u << 20;
inline constexpr size_t kMaxArgumentBytes = 128u << 10;  // the kernel's limit for one argument
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr int64_t kMaxPid = 1 << 22;  // PID_MAX_LIMIT of 64-bit kernels

// Records of the shim: see shim/shim_protocol.h. For an adopted program, `manage` writes them
// without a shim.
std::string EncodeProcesses(const Processes& processes);
Result<Processes> DecodeProcesses(const std::string& text);
struct EndingRecord {
  process::ProcessId root;
  Ending ending;
};
Result<EndingRecord> DecodeEnding(const std::string& text);

// The mark of a dumped tree.
struct DumpedMark {
  process::ProcessId root;
  std::string image;
};
std::string EncodeDumped(const DumpedMark& mark);
Result<DumpedMark> DecodeDumped(const std::string& text);

}  // namespace stasis::jobs
