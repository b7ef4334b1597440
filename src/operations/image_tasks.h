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
#include "image/writer.h"
#include "operations/operations.h"
#include "plan/journal.h"
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
    image::ImageWriter& writer;
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
  Result<store::BlockWriterOptions> HowToWrite(uint32_t uid) const;
  Status DescribeData(image::Manifest& manifest);

  const Context context_;
  // Known only in the image process.
  checkpoint::WrittenData data_;
  store::WrittenPages pages_;
};

// The answers of the tasks.
Result<store::WrittenBlocks> BlocksIn(const std::string& data_write_answer);
Result<store::WrittenPages> PagesIn(const std::string& cpu_write_answer);
struct WrittenImage {
  uint64_t bytes = 0;
  uint64_t added_bytes = 0;  // of them, bytes that no earlier image had
};
Result<WrittenImage> ImageIn(const std::string& commit_answer);

// The size of all files directly in the folder.
uint64_t FolderBytes(const std::string& folder);

}  // namespace stasis::operations
