#include "jobs/record.h"

#include <cinttypes>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "shim/shim_protocol.h"

namespace stasis::jobs {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxHostBytes = 64;  // of uname(2)
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

std::string Text(const Json& object, const char* name, size_t max_bytes) {
  const Json& value = Field(object, name);
  if (!value.is_string()) throw BadField{std::string(name) + " is not text"};
  auto text = value.get<std::string>();
  if (text.size() > max_bytes) throw BadField{std::string(name) + " is too long"};
  if (text.find('\0') != std::string::npos) throw BadField{std::string(name) + " has a zero byte"};
  return text;
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

// Pid 1 cannot be a child and so cannot belong to a job.
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
auto Decoded(const std::string& text, Decode decode)
    -> Result<decltype(decode(std::declval<const Json&>()))> {
  try {
    Json document = Json::parse(text);
    auto found = Number(document, "version", 0, std::numeric_limits<int>::max());
    if (found != shim::kRecordVersion) {
      return Fail(Code::kUnimplemented, "the record has version " + std::to_string(found) +
                                            "; this Stasis supports version " +
                                            std::to_string(shim::kRecordVersion));
    }
    return decode(document);
  } catch (const BadField& bad) {
    return Fail(Code::kDataLoss, "the record is damaged: " + bad.what);
  } catch (const Json::exception& bad) {
    return Fail(Code::kDataLoss, std::string("the record is damaged: ") + bad.what());
  }
}

}  // namespace

std::string EncodeProcesses(const Processes& processes) {
  const Json document = {
      {"version", shim::kRecordVersion},
      {"boot_id", processes.boot_id},
      {"host", processes.host},
      {"shim", ToJson(processes.shim)},
      {"root", ToJson(processes.root)},
      {"log", {{"device", processes.log.device}, {"inode", processes.log.inode}}}};
  return document.dump() + "\n";
}

Result<Processes> DecodeProcesses(const std::string& text) {
  return Decoded(text, [](const Json& document) {
    const Json& log = Field(document, "log");
    return Processes{ShimProcess(document),
                     Process(document, "root"),
                     Text(document, "boot_id", 64),
                     {Unsigned(log, "device"), Unsigned(log, "inode")},
                     document.contains("host") ? Text(document, "host", kMaxHostBytes) : ""};
  });
}

Result<EndingRecord> DecodeEnding(const std::string& text) {
  return Decoded(text, [](const Json& document) {
    EndingRecord record;
    record.root = Process(document, "root");
    std::string state = Text(document, "state", 16);
    if (state != "exited" && state != "dumped") throw BadField{"state is unknown"};
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
  const bool is_place =
      path.starts_with('/') || path.starts_with(kMovedTo) || path.starts_with(kPerhapsMovedTo);
  if (!is_place || path.size() > kMaxPathBytes + 1 || path.find('\0') != path.npos) {
    return Fail(Code::kDataLoss, "the record is damaged: the path of the image is missing");
  }
  mark.image = path.substr(0, path.size() - 1);
  return mark;
}

}  // namespace stasis::jobs
