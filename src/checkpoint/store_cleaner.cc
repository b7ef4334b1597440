#include "checkpoint/store_cleaner.h"

#include <string_view>

#include "store/store_folder.h"

namespace stasis::checkpoint {
namespace {

constexpr const char* kClean = "clean";
// Requests.
constexpr const char* kAbort = "abort";
constexpr const char* kCommitted = "committed";
constexpr const char* kLateFiles = "late files";
constexpr const char* kImage = "image";

// A store is hung if it removes no file within this time.
constexpr std::chrono::seconds kSilence{20};

// Runs in the child process.
Result<std::string> Clean(store::ImageWriter& writer, std::string_view request,
                          const Progress& progress) {
  uint64_t files = 0;
  store::RemovalOptions options;
  options.removed = [&] { (void)progress(++files, 0); };
  if (request == kAbort) {
    STASIS_TRY(writer.Abort(options));
    return std::string();
  }
  if (!writer.committed()) writer.NoteCommitted();
  if (request == kLateFiles) STASIS_TRY(writer.AfterCommit(options));
  if (request == kImage) {
    STASIS_TRY(store::DeleteImage(writer.path(), nullptr, options.removed));
  }
  return std::string();
}

}  // namespace

Result<std::unique_ptr<StoreCleaner>> StoreCleaner::Start(store::ImageWriter& writer,
                                                          std::string store) {
  std::unique_ptr<StoreCleaner> cleaner(new StoreCleaner());
  auto clean = [&writer](const std::string& request, const Progress& progress) {
    return Clean(writer, request, progress);
  };
  STASIS_ASSIGN(cleaner->process_,
                ImageProcess::Start({{kClean, clean}}, writer.descriptors(), std::move(store)));
  return cleaner;
}

Status StoreCleaner::Ask(const char* what) {
  STASIS_TRY(process_->RunWhileItMoves(kClean, what, kSilence));
  return {};
}

Status StoreCleaner::Abort() { return Ask(kAbort); }
Status StoreCleaner::RemoveLateFiles() { return Ask(kLateFiles); }
Status StoreCleaner::DeleteImage() { return Ask(kImage); }
void StoreCleaner::NoteCommitted() { (void)Ask(kCommitted); }

}  // namespace stasis::checkpoint
