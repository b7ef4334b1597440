// The phases of a dump for CPU memory: cpu-room and cpu-write.
#include "checkpoint/cpu_room.h"
#include "gpu_state/gpu_away.h"
#include "operations/dump_run.h"

namespace stasis::operations {
namespace {

using plan::Phase;
using plan::PhaseScope;
using std::chrono::seconds;

// A program has a file of pages for each process, and for each piece of memory that processes share
// or that is a memfd.
constexpr size_t kSharedFiles = 8;

}  // namespace

// Without enough memory, CRIU writes to the store, as in other dumps.
Phase DumpRun::CpuRoom() {
  return {.name = "cpu-room",
          .timeout = seconds(600),
          .run = [this](PhaseScope& scope) -> Status {
            const uint64_t driver = gpu_state::DriverBytes(operation_.device_processes, false);
            const auto need = checkpoint::NeededCpuRoom(survey_.tree, driver);
            auto room = checkpoint::MakeCpuRoom(need, driver, checkpoint::AvailableHostMemory(),
                                                writer_->cpu_dir_fd(),
                                                survey_.tree.members.size() + kSharedFiles);
            streams_ = std::move(room.streams);
            if (!room.note.empty()) notes_.push_back(std::move(room.note));
            if (streams_) scope.SetBytes(need.expected_bytes);
            return {};
          },
          .undo = [this]() -> Status {
            streams_.reset();
            return {};
          }};
}

// Waits for the memory that CRIU has written to pipes. CRIU holds the program.
Status DumpRun::FinishStreams() {
  if (!streams_) return {};
  return StreamError(streams_->Finish());
}

// The dump is repeated, and CRIU then writes to the store.
Status DumpRun::StreamError(Status status) {
  if (status) return status;
  return Fail(checks::CpuMemoryNotReceived(status.error()));
}

Phase DumpRun::CpuWrite() {
  return {.name = kCpuWrite, .timeout = seconds(3600), .run = [this](PhaseScope& scope) -> Status {
            PagesRequest request{manifest_.job.uid, {}};
            if (streams_) request.streamed = streams_->files();
            STASIS_ASSIGN(const std::string answer,
                          RunInImageProcess(kCpuWrite, EncodePages(request), scope));
            streams_.reset();
            STASIS_ASSIGN(pages_, DecodeUnits(answer));
            scope.SetBytes(pages_.stored_bytes);
            return {};
          }};
}

}  // namespace stasis::operations
