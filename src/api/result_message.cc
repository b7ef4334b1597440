#include "api/result_message.h"

#include "api/utf8.h"
#include "plan/account.h"

namespace stasis::api {
namespace {

v1::StoredPart ToMessage(const operations::StoredPart& part) {
  v1::StoredPart message;
  message.set_written(part.written);
  message.set_raw(part.raw);
  message.set_shared(part.shared);
  message.set_repeated(part.repeated);
  message.set_zero(part.zero);
  return message;
}

}  // namespace

v1::PhaseReport ToMessage(const plan::PhaseReport& report) {
  v1::PhaseReport message;
  message.set_name(Utf8(report.name));
  message.set_start_s(report.start_s);
  message.set_seconds(report.seconds);
  message.set_bytes(report.bytes);
  message.set_parallel(report.parallel);
  message.set_depth(static_cast<uint32_t>(report.depth));
  return message;
}

v1::OperationResult ToMessage(const operations::OperationResult& result) {
  v1::OperationResult message;
  message.set_verb(result.account.verb);
  message.set_operation(result.operation);
  message.set_target(Utf8(result.target));
  message.set_job(result.job);
  message.set_pid(result.pid);
  message.set_image(Utf8(result.image));
  message.set_image_bytes(result.image_bytes);
  message.set_added_bytes(result.stored.added);
  *message.mutable_stored_gpu() = ToMessage(result.stored.gpu);
  *message.mutable_stored_cpu() = ToMessage(result.stored.cpu);
  message.set_device_bytes(result.device_bytes);
  message.set_shared_bytes(result.shared_bytes);
  message.set_keep_context(result.keep_context);
  message.set_staying_bytes(result.staying_bytes);
  message.set_copied_bytes(result.saved.copied);
  message.set_unchanged_bytes(result.saved.unchanged);
  message.set_zero_bytes(result.saved.zero);
  message.set_cold_bytes(result.saved.cold);
  message.set_until_first_copy_s(result.saved.until_first_s);
  message.set_hashing_s(result.saved.hashing_s);
  message.set_copy_s(result.saved.copy_s);
  message.set_release_s(result.saved.release_s);
  message.set_close_s(result.saved.close_s);
  for (const auto& why : result.left_to_driver) message.add_left_to_driver(Utf8(why));
  message.set_driver(result.driver_kind);
  for (const auto& phase : result.account.phases) *message.add_phases() = ToMessage(phase);
  message.set_total_s(result.account.total_s);
  message.set_pause_s(result.pause_s);
  for (const auto& note : result.notes) message.add_notes(Utf8(note));
  for (const auto& phase : result.planned_phases) message.add_planned_phases(Utf8(phase));
  return message;
}

}  // namespace stasis::api
