// The tasks of the process that writes the image of a dump (checkpoint/image_process.h). The
// process that runs the plan decodes their answers. The program may already run again, or have
// ended, during a task, so the tasks do not read the program itself; they read only the agent's
// library file.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/image_data.h"
#include "checkpoint/image_process.h"
#include "checkpoint/page_streams.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/shared_suspend.h"
#include "operations/dump.h"
#include "plan/journal.h"
#include "store/image_writer.h"
#include "store/page_writer.h"
#include "store/unit_names.h"

namespace stasis::operations {

// The tasks have the names of the phases that run them.
inline constexpr const char* kDataWrite = "data-write";  // request: the program's user id
inline constexpr const char* kCpuWrite = "cpu-write";    // request: EncodePages()
inline constexpr const char* kCommit = "commit";         // request: the manifest

class ImageTasks {
 public:
  // The objects to which the context refers must outlive this object.
  struct Context {
    const gpu_state::Services& services;
    const plan::Operation& operation;
    const DumpOptions& dump;
    store::ImageWriter& writer;
    gpu_state::SharedSuspend& shared;
    gpu_state::SharedResume& stored;
    checkpoint::PageStreams* streams;  // null if CRIU writes to the store
    std::string criu_log;              // a path
  };
  explicit ImageTasks(Context context) : context_(std::move(context)) {}

  // Arguments of checkpoint::ImageProcess::Start. The tasks refer to this object.
  std::map<std::string, checkpoint::ImageProcess::Task> All();
  std::vector<int> descriptors() const;
  // Returns the GPU data to write: of processes whose memory leaves the GPU now, and of processes
  // that were suspended before.
  std::vector<gpu_state::GpuShard*> Shards() const;

 private:
  Result<std::string> WriteData(const std::string& uid, const Progress& progress);
  Result<std::string> WritePages(const std::string& request, const Progress& progress);
  Result<std::string> WriteImage(const std::string& manifest, const Progress& progress);
  Result<store::WriteOptions> WriterOptions(uint32_t uid) const;
  Result<store::UnitNames> Names();
  Status DescribeData(store::Manifest& manifest);

  const Context context_;
  // Set in the image process only.
  checkpoint::WrittenData data_;
  store::WrittenUnits pages_;
  std::mutex names_mutex_;  // guards names_; tasks run at the same time
  std::optional<store::UnitNames> names_;
};

// The request of cpu-write.
struct PagesRequest {
  uint32_t uid = 0;                                // of the program
  std::vector<checkpoint::StreamedFile> streamed;  // files of pages that are in memory
};
std::string EncodePages(const PagesRequest& request);
// Decodes the answer of data-write or cpu-write.
Result<store::WrittenUnits> DecodeUnits(const std::string& write_answer);
struct WrittenImage {
  uint64_t bytes = 0;
  uint64_t added_bytes = 0;  // bytes that no earlier image had
};
// Decodes the answer of commit.
Result<WrittenImage> DecodeImage(const std::string& commit_answer);

// Returns the size of all files directly in the folder.
uint64_t FolderBytes(const std::string& folder);

}  // namespace stasis::operations
