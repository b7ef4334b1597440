#include "service/convert.h"

#include <algorithm>
#include <cstddef>

namespace stasis::service {
namespace {

// Of an error that travels, each text, and all of them: a caller's gRPC takes 8 KiB of headers, in
// which this is in base64 and beside its first words.
constexpr size_t kLongestText = 2048;
constexpr size_t kLongestError = 3328;
constexpr size_t kMostContexts = 16;

// How many bytes of UTF-8 begin at `at`; 0: none.
size_t SequenceAt(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(at + 1);
  // Overlong forms, surrogates, and what is above the last code point.
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : length;
}

// Not longer than `left`, which is less then.
std::string Short(std::string text, size_t& left) {
  constexpr std::string_view kCut = " [...]";
  const size_t longest = std::min(kLongestText, left);
  if (text.size() > longest) {
    text.resize(longest - std::min(longest, kCut.size()));
    if (longest > kCut.size()) text += kCut;
  }
  left -= text.size();
  return Utf8(std::move(text));
}

constexpr Domain kDomains[] = {Domain::kStasis, Domain::kErrno,   Domain::kCuda, Domain::kCriu,
                               Domain::kImage,  Domain::kProcess, Domain::kUsage};

v1::StoredPart ToMessage(const coordinator::StoredPart& part) {
  v1::StoredPart message;
  message.set_written(part.written);
  message.set_raw(part.raw);
  message.set_shared(part.shared);
  message.set_repeated(part.repeated);
  message.set_zero(part.zero);
  return message;
}

coordinator::StoredPart FromMessage(const v1::StoredPart& message) {
  return {message.written(), message.raw(), message.shared(), message.repeated(), message.zero()};
}

v1::Process ToMessage(const process::ProcessId& id) {
  v1::Process message;
  message.set_pid(id.pid.value);
  message.set_start_ticks(id.start_time);
  return message;
}

// One word, for programs.
std::string_view StateWord(const jobs::Job& job, const GpuUsage& gpu) {
  if (gpu.failed) return "failed";
  return gpu.suspended ? "suspended" : jobs::StateName(job.state);
}

}  // namespace

std::string Utf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceAt(text, at);
    if (length == 0) text[at] = '?';
    at += std::max<size_t>(length, 1);
  }
  return text;
}

v1::Error ToMessage(const Error& error) {
  v1::Error message;
  message.set_code(static_cast<uint32_t>(error.code));
  message.set_domain(std::string(DomainName(error.domain)));
  message.set_raw(error.raw);
  size_t left = kLongestError;
  message.set_message(Short(error.message, left));
  message.set_hint(Short(error.hint, left));
  for (size_t i = 0; i < std::min(error.context.size(), kMostContexts) && left > 0; ++i) {
    message.add_context(Short(error.context[i], left));
  }
  message.set_not_undone(error.not_undone);
  return message;
}

Error FromMessage(const v1::Error& message) {
  Error error;
  const bool known = message.code() > 0 && message.code() <= static_cast<uint32_t>(Code::kDataLoss);
  error.code = known ? static_cast<Code>(message.code()) : Code::kUnknown;
  for (Domain domain : kDomains) {
    if (DomainName(domain) == message.domain()) error.domain = domain;
  }
  error.raw = message.raw();
  error.message = message.message();
  error.hint = message.hint();
  error.context.assign(message.context().begin(), message.context().end());
  error.not_undone = message.not_undone();
  return error;
}

v1::PhaseReport ToMessage(const coordinator::PhaseReport& report) {
  v1::PhaseReport message;
  message.set_name(Utf8(report.name));
  message.set_start_s(report.start_s);
  message.set_seconds(report.seconds);
  message.set_bytes(report.bytes);
  message.set_parallel(report.parallel);
  message.set_depth(static_cast<uint32_t>(report.depth));
  return message;
}

coordinator::PhaseReport FromMessage(const v1::PhaseReport& message) {
  coordinator::PhaseReport report;
  report.name = message.name();
  report.start_s = message.start_s();
  report.seconds = message.seconds();
  report.bytes = message.bytes();
  report.parallel = message.parallel();
  report.depth = static_cast<int>(std::min<uint32_t>(message.depth(), 8));
  return report;
}

v1::OperationResult ToMessage(const coordinator::OperationResult& result) {
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
  message.set_naming_s(result.saved.naming_s);
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

coordinator::OperationResult FromMessage(const v1::OperationResult& message) {
  coordinator::OperationResult result;
  result.account.verb = message.verb();
  result.operation = message.operation();
  result.target = message.target();
  result.job = message.job();
  result.pid = static_cast<pid_t>(message.pid());
  result.image = message.image();
  result.image_bytes = message.image_bytes();
  result.stored.added = message.added_bytes();
  result.stored.gpu = FromMessage(message.stored_gpu());
  result.stored.cpu = FromMessage(message.stored_cpu());
  result.device_bytes = message.device_bytes();
  result.shared_bytes = message.shared_bytes();
  result.keep_context = message.keep_context();
  result.staying_bytes = message.staying_bytes();
  result.saved.copied = message.copied_bytes();
  result.saved.unchanged = message.unchanged_bytes();
  result.saved.zero = message.zero_bytes();
  result.saved.cold = message.cold_bytes();
  result.saved.until_first_s = message.until_first_copy_s();
  result.saved.naming_s = message.naming_s();
  result.saved.copy_s = message.copy_s();
  result.saved.release_s = message.release_s();
  result.saved.close_s = message.close_s();
  result.left_to_driver.assign(message.left_to_driver().begin(), message.left_to_driver().end());
  result.driver_kind = message.driver();
  for (const auto& phase : message.phases()) result.account.phases.push_back(FromMessage(phase));
  result.account.total_s = message.total_s();
  result.pause_s = message.pause_s();
  result.notes.assign(message.notes().begin(), message.notes().end());
  result.planned_phases.assign(message.planned_phases().begin(), message.planned_phases().end());
  return result;
}

v1::Checkpoint ToMessage(const jobs::Checkpoint& checkpoint) {
  v1::Checkpoint message;
  message.set_kind(std::string(jobs::KindName(checkpoint.kind)));
  message.set_image(Utf8(checkpoint.image));
  message.set_name(Utf8(checkpoint.name));
  message.set_time_ms(checkpoint.time_ms);
  message.set_bytes(checkpoint.bytes);
  if (checkpoint.written_bytes) message.set_written_bytes(*checkpoint.written_bytes);
  message.set_seconds(checkpoint.seconds);
  return message;
}

v1::Job ToMessage(const jobs::Job& job, const GpuUsage& gpu) {
  v1::Job message;
  message.set_id(job.id);
  message.set_state(std::string(StateWord(job, gpu)));
  if (job.state == jobs::State::kRunning && job.processes) {
    message.set_pid(job.processes->root.pid.value);
  }
  message.set_shim(job.has_shim);
  for (const auto& argument : job.argv) message.add_command(Utf8(argument));
  message.set_directory(Utf8(job.cwd));
  message.set_uid(job.uid);
  message.set_gid(job.gid);
  if (!jobs::IsAdopted(job)) message.set_log(Utf8(job.log));
  message.set_agent_library(Utf8(job.agent));
  message.set_created_ms(job.created_ms);
  message.set_changed_ms(job.changed_ms);
  message.set_gpu_bytes(gpu.gpu_bytes);
  message.set_suspended_bytes(gpu.suspended_bytes);
  message.set_context_kept(gpu.suspended && gpu.context_kept);
  message.set_uses_gpu(gpu.uses_gpu);
  message.set_suspended(gpu.suspended);
  message.set_failed(gpu.failed);
  if (job.ending) {
    message.set_code(job.ending->code);
    message.set_signal(job.ending->signal);
    message.set_ended_ms(job.ending->time_ms);
    message.set_ended_by_dump(job.ending->dumped);
  }
  if (!job.checkpoints.empty()) *message.mutable_checkpoint() = ToMessage(job.checkpoints.back());
  message.set_images(static_cast<uint32_t>(job.checkpoints.size()));
  if (job.dumped_image) message.set_dumped_image(Utf8(*job.dumped_image));
  if (job.processes) {
    *message.mutable_root() = ToMessage(job.processes->root);
    if (!jobs::IsAdopted(job)) {
      *message.mutable_shim_process() = ToMessage(job.processes->shim);
    }
    message.set_boot_id(job.processes->boot_id);
  }
  return message;
}

}  // namespace stasis::service
