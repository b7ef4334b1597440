#include "api/share_service.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "api/methods.h"
#include "api/share_target.h"
#include "api/utf8.h"
#include "api/worker.h"
#include "base/log.h"
#include "base/operation_id.h"
#include "base/thread.h"
#include "device/device_control.h"
#include "process/search.h"

namespace stasis::api {
namespace {

using Clock = std::chrono::steady_clock;
using sharing::Hand;
using sharing::State;

constexpr std::chrono::seconds kSurveyTimeout{10};
// How long an owner is left alone after its worker has failed or was late. Doubles with each
// failure in a row.
constexpr std::chrono::seconds kFirstPause{1};
constexpr std::chrono::seconds kLongestPause{60};
// An allocation fails by itself this long after share.max_wait, in case the daemon hangs.
constexpr std::chrono::seconds kAnswerMargin{5};

std::string_view StateWord(const sharing::View& view) {
  if (!view.known) return "unknown";
  if (view.target > view.facts.state) return "resuming";
  if (view.target < view.facts.state) return "suspending";
  return view.facts.state == State::kAwake         ? "awake"
         : view.facts.state == State::kContextKept ? "context kept"
                                                   : "suspended";
}

double Seconds(sharing::Time time) { return std::chrono::duration<double>(time).count(); }

// Whether this call needs the daemon's connection to the agent out of its way.
std::optional<Hand> HandOf(const std::string& method) {
  if (method == "Suspend") return Hand::kSuspend;
  if (method == "Resume") return Hand::kResume;
  if (method == "Dump" || method == "GpuStep") return Hand::kOther;
  return std::nullopt;
}

// Returns true if the process belongs to this user. A survey is read from files that its user
// can change, and must not lead the daemon to another user's program.
bool BelongsTo(const process::ProcessId& id, uid_t uid) {
  if (uid == 0) return true;
  const auto credentials = process::ReadCredentials(id.pid);
  return credentials && std::all_of(std::begin(credentials->uid), std::end(credentials->uid),
                                    [uid](uid_t one) { return one == uid; });
}

// Starts a worker that calls one method, and collects the answers of several.
class SurveyWorkers {
 public:
  void Ask(const std::string& name, v1::WorkerRequest work,
           const v1::SurveySharesRequest& request) {
    work.set_method("SurveyShares");
    work.set_request(request.SerializeAsString());
    work.set_operation(NewOperationId());
    std::lock_guard lock(mutex_);
    ++left_;
    auto worker = Worker::Start(
        work, [](const std::string&) {},
        [this, name](const Result<std::string>& reply, bool) {
          std::lock_guard inner(mutex_);
          Take(name, reply);
        });
    if (worker) {
      workers_[name] = *worker;
    } else {
      Take(name, Fail(std::move(worker).error()));
    }
  }
  // Returns the names of those that did not answer in time. They are killed.
  std::vector<std::string> Await() {
    std::unique_lock lock(mutex_);
    std::vector<std::string> late;
    if (!ended_.wait_for(lock, kSurveyTimeout, [this] { return left_ == 0; })) {
      for (const auto& [name, worker] : workers_) {
        if (answers_.contains(name)) continue;
        worker->Abandon();
        late.push_back(name);
      }
      ended_.wait(lock, [this] { return left_ == 0; });
    }
    return late;
  }
  const std::map<std::string, Result<v1::ShareSurvey>>& answers() const { return answers_; }

 private:
  void Take(const std::string& name, const Result<std::string>& reply) {
    v1::ShareSurvey survey;
    if (!reply) {
      answers_.emplace(name, Fail(reply.error()));
    } else if (survey.ParseFromString(*reply)) {
      answers_.emplace(name, std::move(survey));
    } else {
      answers_.emplace(name, Fail(Code::kInternal, "the worker's answer cannot be read"));
    }
    --left_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  size_t left_ = 0;
  std::map<std::string, std::shared_ptr<Worker>> workers_;
  std::map<std::string, Result<v1::ShareSurvey>> answers_;
};

}  // namespace

Result<std::unique_ptr<ShareService>> ShareService::Start(const config::Settings& settings,
                                                          const std::string& folder,
                                                          const v1::WorkerRequest& own,
                                                          OperationTable& operations,
                                                          DaemonMetrics& metrics) {
  std::unique_ptr<ShareService> service(
      new ShareService(own, folder + "/sharing", operations, metrics));
  if (settings.arena_reserve == "auto") {
    service->reserve_ =
        std::make_unique<ArenaReserve>(settings.arena_reserve_bytes, StartReadyArenas);
  }
  const auto saved = service->owners_.Load();
  sharing::Limits limits;
  limits.max_wait = config::Milliseconds(settings.share_max_wait_s);
  limits.host_bytes = settings.share_host_bytes;
  limits.gpu_spare_bytes = settings.share_spare_bytes;
  service->watches_ = agent_client::WatchesOfProcesses(
      std::chrono::duration_cast<std::chrono::milliseconds>(limits.max_wait) + kAnswerMargin,
      limits.gpu_spare_bytes);
  sharing::Manager::Outside outside{
      *service->watches_, *service, *service,
      [s = service.get()](const auto& programs) { s->owners_.SetSaved(programs); },
      [](const agent_protocol::Uuid& uuid) { return device::GpuUuidOf(uuid.bytes).value; }};
  STASIS_ASSIGN(service->manager_, sharing::Manager::Start(std::move(outside), limits, saved));
  sharing::Manager& manager = *service->manager_;
  STASIS_ASSIGN(service->waiters_,
                ShareWaiters::Start({[&manager] { return manager.Show().version; },
                                     [&manager](uint64_t version, std::function<void()> changed) {
                                       manager.OnChange(version, std::move(changed));
                                     }}));
  return service;
}

Status ShareService::Note(const Caller& caller, const v1::WorkerRequest& work) {
  STASIS_TRY(owners_.Add(caller, work));
  manager_->Refresh();
  return {};
}

void ShareService::AskRoom(uint64_t bytes, std::function<void(Status)> done) {
  manager_->AskHostRoom(bytes, 2 * kSurveyTimeout, [done = std::move(done)](bool has_room) {
    if (has_room) return done({});
    done(Fail(Code::kResourceExhausted,
              "host memory does not suffice for the data of one more program that shares GPUs",
              "end or dump one of those that `stasis share` lists, raise share.host_memory, or "
              "set folders.spill"));
  });
}

void ShareService::JobsMayHaveChanged(const Caller& caller, const v1::WorkerRequest& work) {
  // A caller for whom there is no place gets no memory in advance.
  const bool added = reserve_ && owners_.Add(caller, work);
  if (added || !owners_.KeysOf(caller.uid).empty()) manager_->Refresh();
}

std::string ShareService::Find(const Caller& caller, const v1::WorkerRequest& work,
                               const std::string& target) {
  std::vector<std::string> keys = owners_.KeysOf(caller.uid);
  if (work.context().has_folders()) {
    keys = {ShareOwnerKey(caller.uid, work.context().folders())};
  }
  const SharedPrograms programs{[this](const std::string& id) { return manager_->IsShared(id); },
                                [this](process::HostPid pid) { return manager_->ProgramOf(pid); },
                                [this](const std::string& id) -> std::optional<uid_t> {
                                  const auto owner = owners_.Find(SplitShareName(id).key);
                                  if (!owner) return std::nullopt;
                                  return owner->caller.uid;
                                },
                                [](process::HostPid pid) {
                                  std::vector<process::HostPid> lineage;
                                  for (const auto& stat : process::ReadLineage(pid))
                                    lineage.push_back(stat.id.pid);
                                  return lineage;
                                }};
  return FindShared(caller, keys, target, programs);
}

std::string ShareService::ProgramOf(const Caller& caller, const v1::WorkerRequest& work) {
  return HandOf(work.method()) ? Find(caller, work, TargetOf(work.request())) : "";
}

uint64_t ShareService::BeginCall(const std::string& program, const std::string& method,
                                 std::function<void()> begin) {
  return manager_->BeginByHand(program, HandOf(method).value_or(Hand::kOther), std::move(begin));
}

void ShareService::EndCall(uint64_t token, bool ok) {
  if (token != 0) manager_->EndByHand(token, ok);
}

v1::ListSharesResponse ShareService::List(const Caller& caller) {
  const sharing::Manager::Picture picture = manager_->Show();
  v1::ListSharesResponse response;
  response.set_version(picture.version);
  for (const sharing::View& view : picture.programs) {
    const auto [key, job] = SplitShareName(view.id);
    const auto owner = owners_.Find(key);
    if (!owner || !MayManage(caller, owner->caller.uid)) continue;
    v1::Share& share = *response.add_shares();
    share.set_job(job);
    share.set_uid(owner->caller.uid);
    const bool batch = view.facts.share_class == sharing::Class::kBatch;
    share.set_class_(batch ? "batch" : "interactive");
    share.set_state(std::string(StateWord(view)));
    for (const auto& [uuid, memory] : view.facts.memory) {
      auto& gpu = *share.add_gpus();
      gpu.set_uuid(uuid);
      gpu.set_data_bytes(memory.data);
      gpu.set_context_bytes(memory.contexts);
    }
    if (view.wanted_since) share.set_waits_s(Seconds(picture.now - *view.wanted_since));
    share.set_asked_bytes(view.asked_bytes);
    share.set_pinned(view.saved.pinned);
    share.set_by_hand(view.saved.suspended_by_hand);
    share.set_swaps(view.saved.swaps);
    share.set_lost_s(Seconds(view.saved.lost));
    share.set_failed_swaps(view.failures);
    share.set_problem(Utf8(view.problem));
    share.set_obstacle(Utf8(view.facts.obstacle));
  }
  return response;
}

Status ShareService::Pin(const Caller& caller, const v1::WorkerRequest& work,
                         const v1::PinShareRequest& request) {
  const std::string id = Find(caller, work, request.job());
  if (!id.empty() && manager_->Pin(id, request.pinned())) return {};
  return Fail(Code::kNotFound,
              "there is no running job " + Utf8(request.job().substr(0, 64)) + " that shares GPUs",
              "`stasis share` lists them; `stasis run --share` starts one");
}

void ShareService::Publish() {
  Caller root;
  metrics_.SetShares(List(root));
}

void ShareService::Start(const std::set<std::string>& silent,
                         std::function<void(Result<sharing::SurveyAnswer>)> done) {
  auto survey = [this, silent, done] {
    done(SurveyAll(silent));
    std::vector<std::string> pins;
    {
      std::lock_guard lock(mutex_);
      pins.swap(pin_again_);
    }
    for (const std::string& id : pins) manager_->Pin(id, true);
  };
  auto thread = Thread::Start(survey);
  if (!thread) return done(Fail(std::move(thread).error()));
  std::move(*thread).Detach();
}

Result<sharing::SurveyAnswer> ShareService::SurveyAll(const std::set<std::string>& silent) {
  static constexpr char kOwn[] = "own";
  const auto owners = owners_.All();
  SurveyWorkers workers;
  auto await = [&workers] {
    for (const std::string& late : workers.Await()) {
      log::Write(log::Level::kWarn, "a survey of shared GPUs was late", {{"owner", late}});
    }
  };
  v1::SurveySharesRequest programs, gpus;
  programs.set_reserve(reserve_ != nullptr);
  gpus.set_gpus(true);
  for (const auto& [entry, owner] : owners) {
    if (IsPaused(entry)) continue;
    programs.clear_silent();
    for (const std::string& id : silent) {
      ShareName name = SplitShareName(id);
      if (name.key == owners_.KeyOf(entry)) programs.add_silent(std::move(name.job));
    }
    workers.Ask(entry, owner.work, programs);
  }
  await();
  // Afterwards, because the owners' workers free the arenas of programs that have ended.
  if (!owners.empty()) workers.Ask(kOwn, own_, gpus);
  await();
  ShareAnswer answer(BelongsTo);
  uint64_t room_bytes = 0;
  // The figures of the machine come from the daemon's own worker, because users can change theirs.
  if (auto own = workers.answers().find(kOwn); own != workers.answers().end()) {
    if (!own->second) return Fail(own->second.error());
    answer.AddMachine(*own->second);
    room_bytes = own->second->host_room_bytes();
  }
  for (const auto& [entry, owner] : owners) {
    auto found = workers.answers().find(entry);
    if (found != workers.answers().end() && found->second) {
      AddPrograms(entry, owner, *found->second, room_bytes, answer);
      continue;
    }
    if (found != workers.answers().end()) {
      log::Fields fields = {{"uid", uint64_t{owner.caller.uid}}};
      for (auto& field : log::ErrorFields(found->second.error())) fields.push_back(field);
      log::Write(log::Level::kWarn, "cannot survey the programs of a user that share GPUs", fields);
      Pause(entry);
    }
    std::lock_guard lock(mutex_);
    for (const std::string& id : programs_[entry]) answer.AddUnknown(id);
  }
  return std::move(answer).Take();
}

bool ShareService::IsPaused(const std::string& entry) {
  std::lock_guard lock(mutex_);
  auto found = paused_.find(entry);
  return found != paused_.end() && Clock::now() < found->second.until;
}

void ShareService::Pause(const std::string& entry) {
  std::chrono::seconds length;
  {
    std::lock_guard lock(mutex_);
    Paused& paused = paused_[entry];
    paused.length = std::clamp(paused.length * 2, kFirstPause, kLongestPause);
    paused.until = Clock::now() + paused.length;
    length = paused.length;
  }
  // No event of its programs would cause the next survey, because none of them may be known.
  auto thread = Thread::Start([this, length] {
    timespec pause{length.count(), 0};
    ::nanosleep(&pause, nullptr);
    manager_->Refresh();
  });
  if (thread) std::move(*thread).Detach();
}

void ShareService::AddPrograms(const std::string& entry, const ShareOwner& owner,
                               const v1::ShareSurvey& survey, uint64_t room_bytes,
                               ShareAnswer& answer) {
  const std::string key = ShareOwnerKey(owner.caller.uid, survey.folders());
  if (!owners_.Resolve(entry, key)) return;
  std::set<std::string> ids = answer.AddPrograms(key, owner.caller.uid, survey);
  if (reserve_) {
    // The daemon's own worker has counted the memory of its user.
    if (owner.caller.uid != ::geteuid()) answer.AddReady(ids, reserve_->ReadyBytes(entry));
    Reserve(entry, owner, survey, room_bytes);
  }
  if (survey.jobs().empty()) owners_.Forget(entry);
  std::set<std::string> jobs;
  for (const auto& job : survey.jobs()) {
    if (jobs.size() < ShareAnswer::kMaxPrograms) jobs.insert(key + "/" + job);
  }
  owners_.SetJobs(entry, std::move(jobs));
  std::lock_guard lock(mutex_);
  // A job that was dumped and restored is a new program for the manager.
  for (const std::string& id : ids) {
    if (!programs_[entry].contains(id) && owners_.IsPinned(id)) pin_again_.push_back(id);
  }
  paused_.erase(entry);
  programs_[entry] = std::move(ids);
}

void ShareService::Reserve(const std::string& entry, const ShareOwner& owner,
                           const v1::ShareSurvey& survey, uint64_t room_bytes) {
  if (!reserve_) return;
  v1::ReadyArenasRequest request;
  request.set_complete(true);
  for (const auto& program : survey.programs()) {
    if (program.busy()) request.set_complete(false);
    request.mutable_needs()->MergeFrom(program.arenas());
  }
  reserve_->SetNeeds(entry, owner.work, std::move(request), room_bytes);
}

void ShareService::Start(const sharing::Plan::Swap& swap,
                         std::function<void(sharing::SwapResult)> done) {
  const auto [key, job] = SplitShareName(swap.id);
  auto failed = [&done](const Error& error) {
    sharing::SwapResult result;
    result.busy = error.code == Code::kAborted;
    result.problem = error.ToString();
    done(result);
  };
  const auto owner = owners_.Find(key);
  if (!owner) return failed({.code = Code::kNotFound, .message = "its owner is not known"});
  v1::WorkerRequest work = owner->work;
  if (swap.kind == sharing::Action::Kind::kResume) {
    v1::ResumeRequest request;
    request.set_target(job);
    work.set_method("Resume");
    work.set_request(request.SerializeAsString());
  } else {
    v1::SuspendRequest request;
    request.set_target(job);
    request.set_keep_context(swap.kind == sharing::Action::Kind::kSuspendData);
    request.set_no_spill(!swap.spill);
    work.set_method("Suspend");
    work.set_request(request.SerializeAsString());
  }
  const std::string method = work.method();
  auto id = operations_.Begin(owner->caller, method, /*operation=*/true, job);
  if (!id) return failed(id.error());
  work.set_operation(*id);
  const auto began = Clock::now();
  auto end = [this, id = *id, method, done, began](const Result<std::string>& reply, bool lost) {
    operations_.Finish(id);
    operations_.End(id);
    metrics_.CountCall(method, reply, lost);
    const std::chrono::duration<double> seconds = Clock::now() - began;
    metrics_.ObserveOperation(VerbOf(method), seconds.count(), reply);
    sharing::SwapResult result;
    result.ok = reply.has_value();
    if (!reply) {
      result.busy = reply.error().code == Code::kAborted;
      result.problem = reply.error().ToString();
    }
    done(result);
  };
  auto on_event = [this, id = *id, method](const std::string& bytes) {
    v1::OperationEvent event;
    if (!event.ParseFromString(bytes)) return;
    if (event.has_phase_begun()) operations_.SetPhase(id, event.phase_begun().name());
    if (event.has_phase_ended()) metrics_.ObservePhase(VerbOf(method), event.phase_ended());
  };
  auto worker = Worker::Start(work, on_event, end);
  if (worker) {
    operations_.SetWorker(*id, *worker);
  } else {
    end(Fail(std::move(worker).error()), false);
  }
}

}  // namespace stasis::api
