#include "api/result_json.h"

namespace stasis::api {
namespace {

const char* PathName(const v1::OperationResult& result) {
  if (result.shared_bytes() == 0) return "opaque";
  return result.left_to_driver().empty() ? "shared" : "mixed";
}

double BytesPerSecond(const v1::PhaseReport& phase) {
  return phase.seconds() > 0 ? static_cast<double>(phase.bytes()) / phase.seconds() : 0;
}

nlohmann::json List(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& text : texts) list.push_back(text);
  return list;
}

nlohmann::json TransferOf(const v1::OperationResult& result) {
  if (!result.has_transfer()) return nullptr;
  const v1::Transfer& t = result.transfer();
  return {{"repository", t.repository()},
          {"location", t.location()},
          {"name", t.name()},
          {"moved_bytes", t.moved_bytes()},
          {"known_bytes", t.known_bytes()},
          {"sent_bytes", t.sent_bytes()},
          {"received_bytes", t.received_bytes()},
          {"requests", t.requests()},
          {"retries", t.retries()},
          {"repairs", t.repairs()}};
}

nlohmann::json Phases(const google::protobuf::RepeatedPtrField<v1::PhaseReport>& reports) {
  nlohmann::json phases = nlohmann::json::array();
  for (const v1::PhaseReport& phase : reports) {
    phases.push_back({{"name", phase.name()},
                      {"start_s", phase.start_s()},
                      {"seconds", phase.seconds()},
                      {"bytes", phase.bytes()},
                      {"bytes_per_s", BytesPerSecond(phase)},
                      {"parallel", phase.parallel()},
                      {"depth", phase.depth()}});
  }
  return phases;
}

nlohmann::json MigrationOf(const v1::OperationResult& result) {
  if (!result.has_migration()) return nullptr;
  const v1::Migration& m = result.migration();
  nlohmann::json rounds = nlohmann::json::array();
  for (const v1::MigrationRound& round : m.rounds()) {
    rounds.push_back({{"sent_bytes", round.sent_bytes()},
                      {"known_bytes", round.known_bytes()},
                      {"dump_s", round.dump_s()},
                      {"send_s", round.send_s()},
                      {"load_s", round.load_s()}});
  }
  return {{"host", m.host()},
          {"via", m.via()},
          {"rounds", rounds},
          {"restore_phases", Phases(m.restore_phases())},
          {"restore_cold_bytes", m.restore_cold_bytes()}};
}

}  // namespace

nlohmann::json ResultJson(const v1::OperationResult& result) {
  const v1::StoredPart &gpu = result.stored_gpu(), &cpu = result.stored_cpu();
  return {{"verb", result.verb()},
          {"operation", result.operation()},
          {"target", result.target()},
          {"job", result.job()},
          {"pid", result.pid()},
          {"image", result.image()},
          {"image_bytes", result.image_bytes()},
          {"stored",
           {{"added_bytes", result.added_bytes()},
            {"gpu_bytes", gpu.written()},
            {"gpu_uncompressed_bytes", gpu.raw()},
            {"shared_bytes", gpu.shared()},
            {"repeated_bytes", gpu.repeated()},
            {"zero_bytes", gpu.zero()},
            {"cpu_bytes", cpu.written()},
            {"cpu_uncompressed_bytes", cpu.raw()},
            {"cpu_shared_bytes", cpu.shared()},
            {"cpu_repeated_bytes", cpu.repeated()},
            {"cpu_zero_bytes", cpu.zero()}}},
          {"device_bytes", result.device_bytes()},
          {"shared_bytes", result.shared_bytes()},
          {"keep_context", result.keep_context()},
          {"staying_bytes", result.staying_bytes()},
          {"saved",
           {{"copied_bytes", result.copied_bytes()},
            {"unchanged_bytes", result.unchanged_bytes()},
            {"zero_bytes", result.zero_bytes()}}},
          {"cold_bytes", result.cold_bytes()},
          {"save_parts",
           {{"until_first_copy_s", result.until_first_copy_s()},
            {"hashing_s", result.hashing_s()},
            {"copy_s", result.copy_s()},
            {"release_s", result.release_s()},
            {"close_s", result.close_s()}}},
          {"left_to_driver", List(result.left_to_driver())},
          {"path", PathName(result)},
          {"driver", result.driver()},
          {"phases", Phases(result.phases())},
          {"total_s", result.total_s()},
          {"pause_s", result.pause_s()},
          {"transfer", TransferOf(result)},
          {"migration", MigrationOf(result)},
          {"notes", List(result.notes())},
          {"planned_phases", List(result.planned_phases())}};
}

}  // namespace stasis::api
