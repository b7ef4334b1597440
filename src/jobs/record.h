// The files of a job's folder as text. Every field is bounded and checked when it is read: a record
// that was damaged or written by a later version is an error, never half a job.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "jobs/job.h"

namespace stasis::jobs {

inline constexpr int kJobVersion = 1;
inline constexpr char kJobFile[] = "job.json";
inline constexpr size_t kMaxJobBytes = 8u << 20;      // an argument list may take 2 MiB
inline constexpr size_t kMaxRecordBytes = 16u << 10;  // each of the other files
inline constexpr size_t kMaxArguments = 1u << 20;
inline constexpr size_t kMaxArgumentBytes = 128u << 10;  // the kernel's own limit for one
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr size_t kMaxCheckpoints = 1000;  // of more, the oldest are forgotten
inline constexpr int64_t kMaxPid = 1 << 22;      // PID_MAX_LIMIT of 64-bit kernels

// job.json, which is written at the job's start and not again: id to checkpoints of `Job`. A job
// that the database does not know is taken from it. Earlier versions of Stasis had no database, and
// kept the checkpoints there.
std::string EncodeJob(const Job& job);
Result<Job> DecodeJob(const std::string& text);

// What the shim writes: see shim/shim_protocol.h. Of a program that was adopted as it ran, `manage`
// does, and names no shim.
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
