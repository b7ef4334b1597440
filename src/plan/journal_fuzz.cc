// Fuzzes the parser of journal entries with an entry in the journal's folder. The input is the text
// of the entry.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/fuzz_input.h"
#include "plan/journal.h"

namespace {

// A folder in memory, removed when the process exits.
const stasis::Paths& Folder() {
  static const stasis::Paths paths = [] {
    static char name[] = "/dev/shm/stasis-fuzz.XXXXXX";
    stasis::FuzzCheck(::mkdtemp(name) != nullptr);
    ::atexit([] { (void)stasis::RemoveTree(name); });
    stasis::Paths made{name, name};
    stasis::FuzzCheck(::mkdir(made.journal().c_str(), 0700) == 0);
    return made;
  }();
  return paths;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis;
  using namespace stasis::plan;
  const Paths& paths = Folder();
  const std::string path = paths.journal() + "/dump-2-1.journal";
  {
    auto fd = Open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FuzzCheck(fd && WriteAll(fd->get(), {reinterpret_cast<const char*>(data), size}));
  }
  auto entries = ScanJournal(paths, Deadline::In(std::chrono::milliseconds(0)));
  FuzzCheck(entries && entries->size() == 1);
  const JournalEntry& entry = entries->front();
  FuzzCheck(entry.foreign || entry.lock.valid());
  FuzzCheck(entry.readable || !entry.problem.empty());
  return 0;
}
