// Client of a mover: operations on the memory of one GPU. The mover process is started on demand,
// or a resident one is used; it is killed if it exceeds a deadline (mover_process.h). mover_pool.h
// describes the calls.
#pragma once

#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/block_hash.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "dataplane/mover_pool.h"
#include "dataplane/mover_process.h"
#include "dataplane/prefault.h"
#include "dataplane/ring_feed.h"

namespace stasis::dataplane {

class Mover final : public MoverLink {
 public:
  // Starts nothing yet.
  explicit Mover(MoverOptions options);
  ~Mover() override;
  Mover(const Mover&) = delete;

  Result<MoverInfo> Start(const Deadline& deadline) override;
  // Returns the pid of the mover, or 0 if none is running.
  pid_t pid() const { return process_.pid(); }
  Status Stop() override;
  Status Attach(const Arena& arena, const Deadline& deadline) override;
  Status Detach(const Deadline& deadline) override;
  Result<bool> Warm(uint64_t bytes, const std::stop_token& stop, const Deadline& deadline) override;
  Result<WireSpeed> Measure(uint64_t bytes, const Deadline& deadline) override;
  Status PrepareHashes(const BlockSecret& secret, const Deadline& deadline) override;
  Result<HashingSpeed> MeasureHashing(uint64_t bytes, const Deadline& deadline) override;
  Result<CopyResult> Save(const std::vector<Range>& ranges, std::span<const int> fds,
                          const CopyOptions& options, const Deadline& deadline) override;
  Status PrepareLoad(const std::vector<Range>& ranges, uint64_t ballast_bytes,
                     const Deadline& deadline) override;
  Status FreeBallast(const Deadline& deadline) override;
  Result<CopyResult> Load(const CopyOptions& options, const Deadline& deadline) override;
  Status AttachRing(uint64_t load_bytes, uint64_t most_bytes, const Deadline& deadline) override;
  Status LoadFrom(const LoadSource& source, const GoOn& go_on, const Deadline& deadline) override;
  Result<std::vector<UniqueFd>> Export(const Deadline& deadline) override;
  Status Release(const Deadline& deadline) override;

 private:
  Status SendRanges(wire::Op op, const std::vector<Range>& ranges, std::span<const int> fds,
                    const Deadline& deadline);
  // `file` is sent with the request: the file for kFlagHashes or kFlagSkip, or -1 if neither flag
  // is set. `before_bytes` is the number of bytes that earlier parts of the load have copied.
  Result<CopyResult> Copy(const wire::Request& request, int file, const CopyOptions& options,
                          const Deadline& deadline, uint64_t before_bytes = 0);
  Result<CopyResult> SaveImported(const std::vector<Range>& ranges, const CopyOptions& options,
                                  const Deadline& deadline);
  Status CheckAllCopied(const CopyResult& result) const;
  // Returns the number of bytes of the parts.
  Result<uint64_t> SendParts(const std::vector<LoadPart>& parts, const Deadline& deadline);
  Status CopyFrom(const LoadSource& source, const GoOn& go_on, const Deadline& deadline);
  Result<std::vector<Id128>> HashLoaded(const Deadline& deadline);

  MoverProcess process_;
  Mapping ring_;
  size_t count_ = 0;   // ranges of the prepared load
  size_t blocks_ = 0;  // of these ranges
  uint64_t total_bytes_ = 0;
  uint64_t arena_bytes_ = 0;  // end of the prepared load's data in the arena
};

}  // namespace stasis::dataplane
