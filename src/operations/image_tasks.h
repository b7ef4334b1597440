// The tasks of the process that writes the image of a dump (image_process.h): what each does there,
// and how its answer is read by the process that runs the plan. Of the program they ask nothing but
// its agent's library: it may run by then, or have ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/image_data.h"
#include "checkpoint/image_process.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/shared_suspend.h"
#include "operations/operations.h"
#include "plan/journal.h"
#include "store/image_writer.h"
#include "store/page_writer.h"

namespace stasis::operations {

// Tasks, by the names of the phases that run them.
inline constexpr const char* kDataWrite = "data-write";  // request: the program's user id
inline constexpr const char* kCpuWrite = "cpu-write";    // request: the program's user id
inline constexpr const char* kCommit = "commit";         // request: the manifest

class ImageTasks {
 public:
  // Everything must live as long as this object.
  struct Context {
    const gpu_state::Services& services;
    const plan::Operation& operation;
    const DumpOptions& dump;
    store::ImageWriter& writer;
    gpu_state::SharedSuspend& shared;
    gpu_state::SharedResume& stored;
    std::string criu_log;  // a path
  };
  explicit ImageTasks(Context context) : context_(std::move(context)) {}

  // For checkpoint::ImageProcess::Start. They refer to this object.
  std::map<std::string, checkpoint::ImageProcess::Task> All();
  std::vector<int> descriptors() const;
  // The GPU data that is to be written, of processes whose memory leaves the GPU now and of those
  // that were suspended before.
  std::vector<gpu_state::Lot*> Lots() const;

 private:
  Result<std::string> WriteData(const std::string& uid,
                                const checkpoint::ImageProcess::Progress& progress);
  Result<std::string> WritePages(const std::string& uid,
                                 const checkpoint::ImageProcess::Progress& progress);
  Result<std::string> WriteImage(const std::string& manifest,
                                 const checkpoint::ImageProcess::Progress& progress);
  Result<store::WriteOptions> HowToWrite(uint32_t uid) const;
  Status DescribeData(store::Manifest& manifest);

  const Context context_;
  // Known only in the image process.
  checkpoint::WrittenData data_;
  store::WrittenUnits pages_;
};

// The answers of the tasks.
Result<store::WrittenUnits> UnitsIn(const std::string& write_answer);  // of data-write, cpu-write
struct WrittenImage {
  uint64_t bytes = 0;
  uint64_t added_bytes = 0;  // of them, bytes that no earlier image had
};
Result<WrittenImage> ImageIn(const std::string& commit_answer);

// The size of all files directly in the folder.
uint64_t FolderBytes(const std::string& folder);

}  // namespace stasis::operations
