#include "service/account_json.h"

namespace stasis::service {

using coordinator::OperationResult;
using coordinator::PhaseReport;

namespace {

const char* PathName(const OperationResult& result) {
  if (result.shared_bytes == 0) return "opaque";
  return result.left_to_driver.empty() ? "shared" : "mixed";
}

}  // namespace

nlohmann::json AccountJson(const OperationResult& result) {
  nlohmann::json phases = nlohmann::json::array();
  for (const PhaseReport& phase : result.account.phases) {
    phases.push_back({{"name", phase.name},
                      {"start_s", phase.start_s},
                      {"seconds", phase.seconds},
                      {"bytes", phase.bytes},
                      {"bytes_per_s", phase.bytes_per_s()},
                      {"parallel", phase.parallel},
                      {"depth", phase.depth}});
  }
  return {{"verb", result.account.verb},
          {"operation", result.operation},
          {"target", result.target},
          {"job", result.job},
          {"pid", result.pid},
          {"image", result.image},
          {"image_bytes", result.image_bytes},
          {"stored",
           {{"added_bytes", result.stored.added},
            {"gpu_bytes", result.stored.gpu.written},
            {"gpu_uncompressed_bytes", result.stored.gpu.raw},
            {"shared_bytes", result.stored.gpu.shared},
            {"repeated_bytes", result.stored.gpu.repeated},
            {"zero_bytes", result.stored.gpu.zero},
            {"cpu_bytes", result.stored.cpu.written},
            {"cpu_uncompressed_bytes", result.stored.cpu.raw},
            {"cpu_shared_bytes", result.stored.cpu.shared},
            {"cpu_repeated_bytes", result.stored.cpu.repeated},
            {"cpu_zero_bytes", result.stored.cpu.zero}}},
          {"device_bytes", result.device_bytes},
          {"shared_bytes", result.shared_bytes},
          {"keep_context", result.keep_context},
          {"staying_bytes", result.staying_bytes},
          {"saved",
           {{"copied_bytes", result.saved.copied},
            {"unchanged_bytes", result.saved.unchanged},
            {"zero_bytes", result.saved.zero}}},
          {"cold_bytes", result.saved.cold},
          {"save_parts",
           {{"until_first_copy_s", result.saved.until_first_s},
            {"naming_s", result.saved.naming_s},
            {"copy_s", result.saved.copy_s},
            {"release_s", result.saved.release_s},
            {"close_s", result.saved.close_s}}},
          {"left_to_driver", result.left_to_driver},
          {"path", PathName(result)},
          {"driver", result.driver_kind},
          {"phases", phases},
          {"total_s", result.account.total_s},
          {"pause_s", result.pause_s},
          {"notes", result.notes},
          {"planned_phases", result.planned_phases}};
}

}  // namespace stasis::service
