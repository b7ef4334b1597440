#include "jobs/record.h"

#include <cinttypes>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_bytes.h"
#include "shim/shim_protocol.h"

namespace stasis::jobs {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTimeMs = int64_t{1} << 50;

// An invalid field. Thrown and caught in this file only.
struct BadField {
  std::string what;
};

const Json& Field(const Json& object, const char* name) {
  auto it = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || it == object.end()) throw BadField{std::string(name) + " is missing"};
  return *it;
}

std::string Bytes(const Json& value, const char* name, size_t max_bytes) {
  auto decoded = DecodeBytes(value);
  if (!decoded) throw BadField{std::string(name) + " is not text"};
  std::string& bytes = *decoded;
  if (bytes.size() > max_bytes) throw BadField{std::string(name) + " is too long"};
  if (bytes.find('\0') != std::string::npos)
    throw BadField{std::string(name) + " holds a zero byte"};
  return std::move(bytes);
}

std::string AbsolutePathOf(const Json& object, const char* name) {
  std::string path = Bytes(Field(object, name), name, kMaxPathBytes);
  if (path.empty() || path[0] != '/')
    throw BadField{std::string(name) + " is not an absolute path"};
  return path;
}

int64_t Number(const Json& object, const char* name, int64_t min, int64_t max) {
  const Json& value = Field(object, name);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) ||
      value.get<int64_t>() < min || value.get<int64_t>() > max) {
    throw BadField{std::string(name) + " is out of range"};
  }
  return value.get<int64_t>();
}

uint64_t Count(const Json& object, const char* name) {
  return static_cast<uint64_t>(Number(object, name, 0, std::numeric_limits<int64_t>::max()));
}

uint64_t Unsigned(const Json& object, const char* name) {
  const Json& value = Field(object, name);
  if (!value.is_number_unsigned()) throw BadField{std::string(name) + " is out of range"};
  return value.get<uint64_t>();
}

// Pid 1 is no child and cannot belong to a job.
process::ProcessId Process(const Json& object, const char* name) {
  const Json& value = Field(object, name);
  return {{static_cast<pid_t>(Number(value, "pid", 2, kMaxPid))}, Count(value, "start_time")};
}

// An adopted program has no shim.
process::ProcessId ShimProcess(const Json& object) {
  const Json& value = Field(object, "shim");
  if (Number(value, "pid", 0, kMaxPid) != 0) return Process(object, "shim");
  if (Count(value, "start_time") != 0) throw BadField{"shim is out of range"};
  return {};
}

Json ToJson(const process::ProcessId& id) {
  return {{"pid", id.pid.value}, {"start_time", id.start_time}};
}

// Parses `text`, checks the version, and runs `decode`; converts every failure to one error.
template <class Decode>
auto Decoded(const std::string& text, int version, Decode decode)
    -> Result<decltype(decode(std::declval<const Json&>()))> {
  try {
    Json document = Json::parse(text);
    auto found = Number(document, "version", 0, std::numeric_limits<int>::max());
    if (found != version) {
      return Fail(Code::kUnimplemented, "the record has version " + std::to_string(found) +
                                            "; this Stasis knows version " +
                                            std::to_string(version));
    }
    return decode(document);
  } catch (const BadField& bad) {
    return Fail(Code::kDataLoss, "the record is damaged: " + bad.what);
  } catch (const Json::exception& bad) {
    return Fail(Code::kDataLoss, std::string("the record is damaged: ") + bad.what());
  }
}

Checkpoint DecodeCheckpoint(const Json& value) {
  Checkpoint checkpoint;
  checkpoint.image = AbsolutePathOf(value, "image");
  checkpoint.name = Bytes(Field(value, "name"), "name", kMaxPathBytes);
  checkpoint.time_ms = Number(value, "time_ms", 0, kMaxTimeMs);
  checkpoint.bytes = Count(value, "bytes");
  const Json& seconds = Field(value, "seconds");
  if (!seconds.is_number() || !(seconds.get<double>() >= 0 && seconds.get<double>() < 1e9)) {
    throw BadField{"seconds is out of range"};
  }
  checkpoint.seconds = seconds.get<double>();
  return checkpoint;
}

Job DecodeJobFields(const Json& document) {
  Job job;
  job.id = Bytes(Field(document, "id"), "id", kMaxIdLength);
  if (!IsValidId(job.id)) throw BadField{"id is not one"};
  const Json& argv = Field(document, "argv");
  if (!argv.is_array() || argv.empty() || argv.size() > kMaxArguments) {
    throw BadField{"argv is not a list of arguments"};
  }
  for (const Json& arg : argv) job.argv.push_back(Bytes(arg, "argv", kMaxArgumentBytes));
  job.cwd = AbsolutePathOf(document, "cwd");
  job.log = AbsolutePathOf(document, "log");
  // Absent in older records: their programs had no agent.
  if (document.contains("agent")) job.agent = Bytes(document.at("agent"), "agent", kMaxPathBytes);
  job.created_ms = Number(document, "created_ms", 0, kMaxTimeMs);
  const Json& checkpoints = Field(document, "checkpoints");
  if (!checkpoints.is_array() || checkpoints.size() > kMaxCheckpoints) {
    throw BadField{"checkpoints is not a list"};
  }
  for (const Json& value : checkpoints) job.checkpoints.push_back(DecodeCheckpoint(value));
  return job;
}

}  // namespace

std::string EncodeJob(const Job& job) {
  Json argv = Json::array(), checkpoints = Json::array();
  for (const std::string& arg : job.argv) argv.push_back(EncodeBytes(arg));
  size_t count = job.checkpoints.size();
  for (size_t i = count > kMaxCheckpoints ? count - kMaxCheckpoints : 0; i < count; ++i) {
    const Checkpoint& checkpoint = job.checkpoints[i];
    checkpoints.push_back({{"image", EncodeBytes(checkpoint.image)},
                           {"name", EncodeBytes(checkpoint.name)},
                           {"time_ms", checkpoint.time_ms},
                           {"bytes", checkpoint.bytes},
                           {"seconds", checkpoint.seconds}});
  }
  Json document = {{"version", kJobVersion},
                   {"id", job.id},
                   {"argv", argv},
                   {"cwd", EncodeBytes(job.cwd)},
                   {"created_ms", job.created_ms},
                   {"log", EncodeBytes(job.log)},
                   {"agent", EncodeBytes(job.agent)},
                   {"checkpoints", checkpoints}};
  return document.dump(1) + "\n";
}

Result<Job> DecodeJob(const std::string& text) {
  return Decoded(text, kJobVersion, DecodeJobFields);
}

std::string EncodeProcesses(const Processes& processes) {
  const Json document = {
      {"version", shim::kRecordVersion},
      {"boot_id", processes.boot_id},
      {"shim", ToJson(processes.shim)},
      {"root", ToJson(processes.root)},
      {"log", {{"device", processes.log.device}, {"inode", processes.log.inode}}}};
  return document.dump() + "\n";
}

Result<Processes> DecodeProcesses(const std::string& text) {
  return Decoded(text, shim::kRecordVersion, [](const Json& document) {
    const Json& log = Field(document, "log");
    return Processes{ShimProcess(document),
                     Process(document, "root"),
                     Bytes(Field(document, "boot_id"), "boot_id", 64),
                     {Unsigned(log, "device"), Unsigned(log, "inode")}};
  });
}

Result<EndingRecord> DecodeEnding(const std::string& text) {
  return Decoded(text, shim::kRecordVersion, [](const Json& document) {
    EndingRecord record;
    record.root = Process(document, "root");
    std::string state = Bytes(Field(document, "state"), "state", 16);
    if (state != "exited" && state != "dumped") throw BadField{"state is not one"};
    record.ending.dumped = state == "dumped";
    record.ending.code = static_cast<int>(Number(document, "code", 0, 255));
    record.ending.signal = static_cast<int>(Number(document, "signal", 0, 127));
    record.ending.time_ms = Number(document, "time_ms", 0, kMaxTimeMs);
    return record;
  });
}

std::string EncodeDumped(const DumpedMark& mark) {
  return std::to_string(shim::kRecordVersion) + " " + process::ToString(mark.root.pid) + " " +
         std::to_string(mark.root.start_time) + "\n" + mark.image + "\n";
}

Result<DumpedMark> DecodeDumped(const std::string& text) {
  DumpedMark mark;
  int version = 0, path_at = 0;
  if (std::sscanf(text.c_str(), "%d %d %" SCNu64 "%*1[\n]%n", &version, &mark.root.pid.value,
                  &mark.root.start_time, &path_at) != 3 ||
      version != shim::kRecordVersion || path_at == 0 || text.back() != '\n' ||
      mark.root.pid.value < 2 || mark.root.pid.value > kMaxPid) {
    return Fail(Code::kDataLoss, "the record is damaged");
  }
  std::string_view path = std::string_view(text).substr(static_cast<size_t>(path_at));
  if (!path.starts_with('/') || path.size() > kMaxPathBytes + 1 || path.find('\0') != path.npos) {
    return Fail(Code::kDataLoss, "the record is damaged: it names no image");
  }
  mark.image = path.substr(0, path.size() - 1);
  return mark;
}

}  // namespace stasis::jobs
