#include "api/job_message.h"

#include <string_view>

#include "api/utf8.h"

namespace stasis::api {
namespace {

v1::Process ToMessage(const process::ProcessId& id) {
  v1::Process message;
  message.set_pid(id.pid.value);
  message.set_start_ticks(id.start_time);
  return message;
}

// Returns the state in one word, for programs.
std::string_view StateWord(const jobs::Job& job, const GpuUsage& gpu) {
  if (gpu.failed) return "failed";
  return gpu.suspended ? "suspended" : jobs::StateName(job.state);
}

}  // namespace

v1::Checkpoint ToMessage(const jobs::Checkpoint& checkpoint) {
  v1::Checkpoint message;
  message.set_kind(std::string(jobs::KindName(checkpoint.kind)));
  message.set_image(Utf8(checkpoint.image));
  message.set_name(Utf8(checkpoint.name));
  message.set_time_ms(checkpoint.time_ms);
  message.set_bytes(checkpoint.bytes);
  if (checkpoint.written_bytes) message.set_written_bytes(*checkpoint.written_bytes);
  message.set_seconds(checkpoint.seconds);
  if (checkpoint.copy) {
    message.set_copy(Utf8(checkpoint.copy->repository + "/" + checkpoint.copy->name));
  }
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
  message.set_share(job.share);
  message.set_uid(job.uid);
  message.set_gid(job.gid);
  if (!jobs::IsAdopted(job)) message.set_log(Utf8(job.log));
  message.set_agent_library(Utf8(job.agent));
  message.set_created_ms(job.created_ms);
  message.set_changed_ms(job.changed_ms);
  message.set_gpu_bytes(gpu.gpu_bytes);
  message.set_suspended_bytes(gpu.suspended_bytes);
  message.set_spilled_bytes(gpu.spilled_bytes);
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
  message.set_moved_to(Utf8(jobs::MovedTo(job)));
  message.set_perhaps_moved_to(Utf8(jobs::PerhapsMovedTo(job)));
  if (job.state == jobs::State::kElsewhere) message.set_node(Utf8(job.processes->host));
  if (job.processes) {
    *message.mutable_root() = ToMessage(job.processes->root);
    if (!jobs::IsAdopted(job)) {
      *message.mutable_shim_process() = ToMessage(job.processes->shim);
    }
    message.set_boot_id(job.processes->boot_id);
  }
  return message;
}

}  // namespace stasis::api
