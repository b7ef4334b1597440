#include "operations/image_tasks.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/secret.h"
#include "checkpoint/agent_files.h"
#include "criu/terminals.h"
#include "repository/pulled_origin.h"
#include "store/manifest_codec.h"
#include "store/origin.h"
#include "store/user_limit.h"

namespace stasis::store {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WrittenUnits, zero_bytes, new_bytes, stored_bytes, shared_bytes,
                                   repeated_bytes, notes)

}  // namespace stasis::store

namespace stasis::checkpoint {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StreamedFile, name, begin, bytes)

}  // namespace stasis::checkpoint

namespace stasis::operations {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PagesRequest, uid, streamed)

namespace {

using gpu_state::GpuShard;

// Encodes the answer of a task that has written units.
std::string ToJson(const store::WrittenUnits& written) {
  const nlohmann::json json = written;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<nlohmann::json> ParseAnswer(const std::string& answer) {
  auto json = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return Fail(Code::kInternal, "the process that writes the image sent a malformed answer");
}

Result<PagesRequest> DecodePages(const std::string& request) {
  STASIS_ASSIGN(const nlohmann::json json, ParseAnswer(request));
  return json.get<PagesRequest>();
}

}  // namespace

std::string EncodePages(const PagesRequest& request) { return nlohmann::json(request).dump(); }

Result<store::WrittenUnits> DecodeUnits(const std::string& write_answer) {
  STASIS_ASSIGN(const nlohmann::json json, ParseAnswer(write_answer));
  return json.get<store::WrittenUnits>();
}

Result<WrittenImage> DecodeImage(const std::string& commit_answer) {
  STASIS_ASSIGN(const nlohmann::json json, ParseAnswer(commit_answer));
  return WrittenImage{json["bytes"], json["added"]};
}

uint64_t FolderBytes(const std::string& folder) {
  uint64_t sum = 0;
  auto names = ListDir(folder);
  if (!names) return 0;
  for (const std::string& name : *names) {
    struct stat st;
    if (::stat((folder + "/" + name).c_str(), &st) == 0) sum += static_cast<uint64_t>(st.st_size);
  }
  return sum;
}

std::map<std::string, checkpoint::ImageProcess::Task> ImageTasks::All() {
  auto task = [this](auto method) {
    return [this, method](const std::string& request, const Progress& progress) {
      return (this->*method)(request, progress);
    };
  };
  return {{kDataWrite, task(&ImageTasks::WriteData)},
          {kCpuWrite, task(&ImageTasks::WritePages)},
          {kCommit, task(&ImageTasks::WriteImage)}};
}

std::vector<int> ImageTasks::descriptors() const {
  std::vector<int> fds = context_.writer.descriptors();
  for (const GpuShard* shard : Shards()) {
    if (shard->arena) fds.push_back(shard->arena->fd());
  }
  return fds;
}

std::vector<GpuShard*> ImageTasks::Shards() const {
  std::vector<GpuShard*> shards;
  for (GpuShard& shard : context_.shared.shards()) shards.push_back(&shard);
  for (GpuShard& shard : context_.stored.shards()) shards.push_back(&shard);
  return shards;
}

Result<std::string> ImageTasks::WriteData(const std::string& uid, const Progress& progress) {
  const uint64_t total = context_.shared.bytes() + context_.stored.bytes();
  STASIS_ASSIGN(auto how, WriterOptions(static_cast<uint32_t>(std::stoul(uid))));
  STASIS_ASSIGN(const store::UnitNames names, Names());
  STASIS_ASSIGN(data_,
                checkpoint::WriteShards(names, context_.writer, Shards(), std::move(how),
                                        [&](uint64_t done) { return progress(done, total); }));
  return ToJson(data_.blocks);
}

// Cuts CRIU's memory files, which are in memory or in the page cache, into pages.
Result<std::string> ImageTasks::WritePages(const std::string& request, const Progress& progress) {
  store::ImageWriter& writer = context_.writer;
  STASIS_ASSIGN(const PagesRequest pages, DecodePages(request));
  std::vector<store::FileInMemory> in_memory;
  if (context_.streams != nullptr) {
    STASIS_TRY(checkpoint::PageStreams::RemoveLinks(writer.cpu_dir_fd(), pages.streamed));
    STASIS_ASSIGN(in_memory, context_.streams->Content(pages.streamed));
  }
  STASIS_TRY(criu::DetachTerminals(writer.cpu_path()));
  STASIS_ASSIGN(const store::UnitNames names, Names());
  STASIS_ASSIGN(auto how, WriterOptions(pages.uid));
  uint64_t total = FolderBytes(writer.cpu_path());
  for (const store::FileInMemory& file : in_memory) total += file.content.size();
  how.progress = [&](uint64_t done) { return progress(std::min(done, total), total); };
  auto written = store::WritePages(writer, names, how, in_memory);
  if (!written && written.error().code == Code::kCancelled) return Fail(plan::TookTooLong());
  STASIS_ASSIGN(pages_, std::move(written));
  if (context_.streams != nullptr) context_.streams->Free();
  return ToJson(pages_);
}

Result<std::string> ImageTasks::WriteImage(const std::string& request, const Progress& progress) {
  store::ImageWriter& writer = context_.writer;
  STASIS_ASSIGN(store::Manifest manifest, store::DecodeManifest(request));
  STASIS_TRY(writer.AddLogFile("criu-dump.log", context_.criu_log));
  STASIS_TRY(DescribeData(manifest));
  store::CommitOptions options;
  options.progress = progress;
  STASIS_ASSIGN(options.origin, store::OriginKeyOf(context_.services.paths));
  STASIS_TRY(checkpoint::StoreAgentLibraries(writer, manifest));
  // The limit on the user's images is checked here, because all files now have their final sizes.
  STASIS_TRY(
      store::CheckImageLimit(context_.dump.store, context_.services.settings.most_image_bytes));
  STASIS_TRY(writer.Commit(manifest, options));
  return nlohmann::json{{"bytes", manifest.TotalBytes()}, {"added", manifest.AddedBytes()}}.dump();
}

// Reads the secret once, so that all unit names of an image come from one key, even if the user
// joins another key during the dump.
Result<store::UnitNames> ImageTasks::Names() {
  std::lock_guard lock(names_mutex_);
  if (!names_) {
    STASIS_ASSIGN(const BlockSecret secret, NamingSecretOf(context_.services.paths));
    names_.emplace(secret);
  }
  return *names_;
}

Result<store::WriteOptions> ImageTasks::WriterOptions(uint32_t uid) const {
  store::WriteOptions how;
  STASIS_ASSIGN(how.origins, repository::SharableOrigins(context_.services.paths));
  how.compression = context_.dump.compression;
  how.packs.bytes = context_.services.settings.pack_bytes;
  how.share = !context_.dump.full;
  how.job_id = context_.operation.job;
  how.uid = uid;
  return how;
}

Status ImageTasks::DescribeData(store::Manifest& manifest) {
  for (auto& p : manifest.processes) {
    for (const auto& recorded : context_.operation.device_processes) {
      if (recorded.id.pid.value != p.pid) continue;
      // The driver's share as surveyed, plus the exact size of the blocks.
      p.device_bytes = recorded.device_bytes + context_.shared.BytesOf(recorded.id) +
                       context_.stored.BytesOf(recorded.id);
    }
  }
  data_.blocks.DescribeIn(manifest);
  pages_.DescribeIn(manifest);
  for (store::DeviceRange& range : manifest.ranges) {
    const std::string& uuid = data_.gpus[range.gpu].value;
    auto gpu = std::find_if(manifest.gpus.begin(), manifest.gpus.end(),
                            [&](const store::Gpu& g) { return g.uuid == uuid; });
    if (gpu == manifest.gpus.end()) {
      return Fail(Code::kInternal,
                  "the dump has data of GPU " + uuid + ", which this machine does not have");
    }
    range.gpu = static_cast<uint32_t>(gpu - manifest.gpus.begin());
  }
  return {};
}

}  // namespace stasis::operations
