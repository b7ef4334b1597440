#include "bench/remote_measure.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/deadline.h"
#include "base/file.h"
#include "base/id128.h"
#include "bench/noise.h"
#include "bench/plain_objects.h"
#include "dataplane/arena_place.h"
#include "repository/gc.h"
#include "repository/images.h"
#include "repository/push.h"
#include "repository/streamed_image.h"
#include "store/beneath.h"
#include "store/block_writer.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/image_writer.h"

namespace stasis::bench {
namespace {

// The numbers of parallel transfers that are tried for plain objects.
constexpr unsigned kParallel[] = {4, 8, 16, 32};
// The time limit for deletions and gc, which also run after Ctrl-C.
constexpr std::chrono::minutes kCleanUpTimeout{5};
constexpr uint64_t kAddress = 0x7f0000000000;
constexpr char kLocalName[] = "image";

// Private memory whose pages exist already, like those of an arena that is reused.
class Memory {
 public:
  static Result<Memory> Allocate(uint64_t bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) return FailErrno(errno, fmt::format("allocate {} bytes", bytes));
    return Memory(static_cast<char*>(at), bytes);
  }
  ~Memory() {
    if (at_ != nullptr) ::munmap(at_, bytes_);
  }
  Memory(Memory&& other) noexcept : at_(std::exchange(other.at_, nullptr)), bytes_(other.bytes_) {}
  Memory& operator=(Memory&&) = delete;

  std::span<char> span() const { return {at_, bytes_}; }
  std::string_view view() const { return {at_, bytes_}; }
  void Clear() { std::memset(at_, 0, bytes_); }

 private:
  Memory(char* at, uint64_t bytes) : at_(at), bytes_(bytes) {}

  char* at_;
  uint64_t bytes_;
};

// A hidden folder in a store. Sweeps remove it if this process is killed.
class HiddenFolder {
 public:
  static Result<HiddenFolder> Create(const std::string& store) {
    STASIS_TRY(MakeDirs(store));
    STASIS_ASSIGN(store::Hidden hidden, store::MakeHidden(store, "bench", store::kPartial));
    return HiddenFolder(store, std::move(hidden));
  }
  ~HiddenFolder() {
    if (hidden_.name.empty()) return;
    if (auto folder = store::OpenFolder(store_)) {
      (void)store::RemoveHidden(folder->get(), store_, hidden_.name);
    }
  }
  HiddenFolder(HiddenFolder&& other) noexcept
      : store_(std::move(other.store_)), hidden_(std::exchange(other.hidden_, {})) {}
  HiddenFolder& operator=(HiddenFolder&&) = delete;

  std::string path() const { return store_ + "/" + hidden_.name; }

 private:
  HiddenFolder(std::string store, store::Hidden hidden)
      : store_(std::move(store)), hidden_(std::move(hidden)) {}

  std::string store_;
  store::Hidden hidden_;
};

// Returns the manifest of a program that has one range of GPU memory and nothing else. The image is
// never restored.
store::Manifest ManifestOf() {
  store::Manifest manifest;
  manifest.host = store::HostNow();
  manifest.job.argv = {"stasis", "bench", "--remote"};
  manifest.gpus = {{"bench", "bench", 0, 0}};
  return manifest;
}

class RemoteBench {
 public:
  RemoteBench(const RemoteOptions& options, Memory memory, const Id128& id)
      : options_(options),
        memory_(std::move(memory)),
        name_("bench-" + id.Hex()),
        first_seed_(std::hash<std::string>()(name_)),
        plain_(options.plain, "check/" + name_, options.size_bytes, options.object_bytes) {}

  // Calls MeasureAll, and cleans up in any case.
  Result<RemoteMeasurements> Run();

 private:
  Result<RemoteMeasurements> MeasureAll();
  Status ChooseParallel(RemoteMeasurements& found);
  Result<RemoteRound> OneRound(const RemoteMeasurements& found, uint64_t seed);
  Result<std::unique_ptr<store::ImageReader>> WriteImage(const std::string& folder);
  Status PushImage(const store::ImageReader& image, RemoteRound& round);
  Status Restore();
  Status RemoveImage(const objects::CallOptions& call);
  Status CleanUp();
  Result<double> Time(const std::string& what, const std::function<Status()>& transfer);
  void Show(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }
  bool IsStopped() const { return options_.stop.stop_requested(); }
  objects::CallOptions call() const { return {Deadline(), options_.stop}; }
  const repository::Repository& repository() const { return options_.repository; }

  const RemoteOptions& options_;
  Memory memory_;
  const std::string name_;     // the image's name in the repository
  const uint64_t first_seed_;  // random, because no two benches may push the same memory
  PlainObjects plain_;
  bool may_be_pushed_ = false;
  std::set<repository::PushId> pushes_;  // of an image that may be in the repository
};

// Returns the seconds that a transfer took.
Result<double> RemoteBench::Time(const std::string& what, const std::function<Status()>& transfer) {
  if (IsStopped()) return Fail(Code::kCancelled, "the measurement was cancelled");
  Show(what);
  const Stopwatch watch;
  STASIS_TRY(transfer());
  return watch.Seconds();
}

// Measures several numbers of parallel transfers. Tries the first number twice, because the first
// requests also open the connections.
Status RemoteBench::ChooseParallel(RemoteMeasurements& found) {
  double best_put_s = 0, best_get_s = 0;
  FillNoise(memory_.span(), first_seed_);
  STASIS_TRY(plain_.Put(memory_.span(), kParallel[0], call()));
  for (const unsigned parallel : kParallel) {
    const std::string at_a_time = fmt::format(" {} at a time", parallel);
    STASIS_ASSIGN(const double put_s, Time("plain PUTs," + at_a_time, [&] {
                    return plain_.Put(memory_.span(), parallel, call());
                  }));
    STASIS_ASSIGN(const double get_s, Time("plain GETs," + at_a_time, [&] {
                    return plain_.Get(memory_.span(), parallel, call());
                  }));
    if (found.put_parallel == 0 || put_s < best_put_s) {
      found.put_parallel = parallel;
      best_put_s = put_s;
    }
    if (found.get_parallel == 0 || get_s < best_get_s) {
      found.get_parallel = parallel;
      best_get_s = get_s;
    }
    if (parallel >= plain_.count()) break;  // no more can be moved at a time
  }
  return {};
}

Result<std::unique_ptr<store::ImageReader>> RemoteBench::WriteImage(const std::string& folder) {
  STASIS_ASSIGN(const auto writer, store::ImageWriter::Begin(folder, kLocalName));
  store::Manifest manifest = ManifestOf();
  store::WriteOptions write;
  write.share = false;
  write.packs = options_.packs;
  write.progress = [this](uint64_t) { return !IsStopped(); };
  const store::DeviceRange range{0, kAddress, options_.size_bytes, kBlockBytes, {}, 1};
  STASIS_ASSIGN(const auto written,
                store::WithSpaceHint(
                    store::WriteBlocks(*writer, options_.names, {{range, memory_.view()}}, write),
                    options_.store_path));
  written.DescribeIn(manifest);
  STASIS_TRY(store::WithSpaceHint(writer->Commit(manifest, {}), options_.store_path));
  (void)writer->AfterCommit();
  return store::ImageReader::Open(writer->path());
}

Status RemoteBench::PushImage(const store::ImageReader& image, RemoteRound& round) {
  repository::PushOptions push;
  push.names = &options_.names;
  push.trusts_index = true;  // as after a dump on this machine
  push.stop = options_.stop;
  push.announced = [this](const repository::PushId& id) { pushes_.insert(id); };
  may_be_pushed_ = true;
  STASIS_ASSIGN(const auto report, repository::Push(repository(), image, name_, push));
  round.push_requests = report.requests;
  return {};
}

// Does what `stasis restore REPO/NAME` does: first pulls everything except GPU memory to a hidden
// folder, and then GPU memory to host memory. In a restore, a mover loads it from there to the GPU
// at the same time; here there is no mover.
Status RemoteBench::Restore() {
  repository::PullOptions pull;
  pull.names = &options_.names;
  pull.stop = options_.stop;
  STASIS_ASSIGN(const auto image, repository::StreamedImage::Open(
                                      repository(), name_, options_.store_path, std::move(pull)));
  const size_t ranges[] = {0};
  const store::RangeOutput outputs[] = {{memory_.span().data()}};
  const auto placed = [](const store::UnitJobs::Place&, uint64_t) -> Status { return {}; };
  return image->ranges()->Read(ranges, outputs, placed, [this] { return !IsStopped(); });
}

Result<RemoteRound> RemoteBench::OneRound(const RemoteMeasurements& found, uint64_t seed) {
  RemoteRound round;
  const uint64_t retries_before = repository().store().counters().retries;
  FillNoise(memory_.span(), seed);
  STASIS_ASSIGN(round.put_s, Time("plain PUTs", [&] {
                  return plain_.Put(memory_.span(), found.put_parallel, call());
                }));
  {
    STASIS_ASSIGN(const HiddenFolder folder, HiddenFolder::Create(options_.store_path));
    Show("writing the local image");
    STASIS_ASSIGN(const auto image, WriteImage(folder.path()));
    STASIS_ASSIGN(round.push_s, Time("push", [&] { return PushImage(*image, round); }));
  }
  memory_.Clear();
  STASIS_ASSIGN(round.get_s, Time("plain GETs", [&] {
                  return plain_.Get(memory_.span(), found.get_parallel, call());
                }));
  memory_.Clear();
  STASIS_ASSIGN(round.restore_s, Time("restore", [&] { return Restore(); }));
  round.retries = repository().store().counters().retries - retries_before;
  if (!IsNoise(memory_.span(), seed)) {
    return Fail(Code::kDataLoss, "the restored memory is not the memory that was pushed");
  }
  Show("removing the image");
  STASIS_TRY(RemoveImage({Deadline::In(kCleanUpTimeout), {}}));
  return round;
}

// Deletes the image and frees its packs. Otherwise the push of the next round would be slower,
// because a push reads the indexes of all packs.
Status RemoteBench::RemoveImage(const objects::CallOptions& call) {
  if (!may_be_pushed_) return {};
  const Status deleted = repository::DeleteImage(repository(), name_, call);
  if (!deleted && deleted.error().code != Code::kNotFound) return deleted;
  repository::GcOptions gc;
  gc.deadline = call.deadline;
  gc.only = pushes_;
  STASIS_TRY(repository::CollectGarbage(repository(), gc));
  may_be_pushed_ = false;
  pushes_.clear();
  return {};
}

Status RemoteBench::CleanUp() {
  Show("cleaning up");
  const objects::CallOptions call{Deadline::In(kCleanUpTimeout), {}};
  Status done = plain_.Delete(call);
  Status removed = RemoveImage(call);
  return done ? std::move(removed) : std::move(done);
}

Result<RemoteMeasurements> RemoteBench::MeasureAll() {
  const Stopwatch watch;
  RemoteMeasurements found;
  found.size_bytes = options_.size_bytes;
  found.object_bytes = options_.object_bytes;
  found.objects = plain_.count();
  STASIS_TRY(ChooseParallel(found));
  for (int i = 1; i <= options_.rounds; ++i) {
    STASIS_ASSIGN(RemoteRound round,
                  Annotate(OneRound(found, first_seed_ + static_cast<uint64_t>(i)),
                           fmt::format("round {} of {}", i, options_.rounds)));
    found.rounds.push_back(round);
  }
  found.total_s = watch.Seconds();
  return found;
}

Result<RemoteMeasurements> RemoteBench::Run() {
  auto found = MeasureAll();
  Status cleaned = CleanUp();
  if (cleaned) return found;
  Error error = found ? std::move(cleaned).error() : std::move(found).error();
  error.WithContext(fmt::format("objects may be left in the repository, check/{}-*", name_));
  error.hint = fmt::format(
      "run `stasis image delete {0} -R {1}` and `stasis image gc -R {1}`, and delete check/{0}-*",
      name_, options_.repository_name);
  return Fail(std::move(error));
}

}  // namespace

Result<RemoteMeasurements> MeasureRemote(const RemoteOptions& options) {
  STASIS_TRY(options.repository.store().CheckLists());
  if (const uint64_t room = dataplane::MemoryAvailable(); options.size_bytes > room) {
    return Fail(Code::kResourceExhausted,
                fmt::format("the machine has {} MiB of free memory, but --size needs {} MiB",
                            room >> 20, options.size_bytes >> 20),
                "use a smaller --size");
  }
  STASIS_ASSIGN(Memory memory, Memory::Allocate(options.size_bytes));
  STASIS_ASSIGN(const Id128 id, Id128::Random());
  return RemoteBench(options, std::move(memory), id).Run();
}

}  // namespace stasis::bench
