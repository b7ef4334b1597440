#include "slurm_setup/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stasis::slurm_setup {
namespace {

constexpr int kCheckpointRestore = 40;  // CAP_CHECKPOINT_RESTORE
constexpr int kNetwork = 12;            // CAP_NET_ADMIN
constexpr int64_t kDumpedExitCode = 75;
constexpr int64_t kFewRequeues = 100;

Finding Ok(std::string found) { return {Level::kOk, std::move(found), {}}; }
Finding Note(std::string found, std::string fix = {}) {
  return {Level::kNote, std::move(found), std::move(fix)};
}
Finding Warn(std::string found, std::string fix = {}) {
  return {Level::kWarning, std::move(found), std::move(fix)};
}
Finding Cannot(std::string found, std::string fix = {}) {
  return {Level::kCannot, std::move(found), std::move(fix)};
}

// Returns "NAME=VALUE", or "NAME is not set".
std::string Setting(const Site& site, const char* shown, const char* name) {
  const std::string value = site.config.Get(name);
  return value.empty() ? fmt::format("{} is not set", shown) : fmt::format("{}={}", shown, value);
}

Finding LookAtSlurm(const Site& site) {
  if (!site.problem.empty()) return Cannot(site.problem);
  return Ok(fmt::format("Slurm {}, cluster {}, {}", site.config.Get("slurm_version"),
                        site.config.Get("clustername"), site.config.Get("slurm_conf")));
}

Finding LookAtPlugin(const Site& site) {
  if (!site.plugstack_problem.empty()) return Cannot(site.plugstack_problem);
  if (!site.plugin) return Cannot(fmt::format("{} has no line for stasis.so", site.plugstack));
  if (!site.plugin_exists) {
    return Cannot(fmt::format("{} is missing or cannot be read", site.plugin_path),
                  "install Stasis on every node, or correct the path in " + site.plugstack);
  }
  if (site.plugin->is_required) {
    return Warn(fmt::format("{} is `required` in {}", site.plugin_path, site.plugstack),
                "write `optional` in its place: with `required`, every job fails on a node without "
                "the file");
  }
  const std::string partitions = site.plugin->Argument("partitions");
  return Ok(fmt::format("{} in {}{}", site.plugin_path, site.plugstack,
                        partitions.empty() ? "" : "; default in the partitions " + partitions));
}

Finding LookAtRelease(const Site& site) {
  if (!site.plugin_exists) return Note("there is no plugin");
  if (!site.compiled_for) return Warn(site.plugin_path + " does not tell for which release it is");
  const auto release = site.release();
  if (!release) return Warn(site.config.Get("slurm_version") + " is an unknown version of Slurm");
  if (*release != *site.compiled_for) {
    const InstalledPlugin* right = PluginFor(site.plugins, release);
    return Cannot(fmt::format("the plugin is for Slurm {}, and Slurm is {}",
                              ToString(*site.compiled_for), ToString(*release)),
                  right != nullptr
                      ? fmt::format("write {} in its place in {}", right->path, site.plugstack)
                      : "");
  }
  return Ok("the plugin is for Slurm " + ToString(*release));
}

Finding LookAtLauncher(const Site& site) {
  if (!site.plugin_exists) return Note("there is no plugin");
  if (!site.launcher_works) return Cannot(site.launcher + " is missing or cannot be run");
  return Ok(site.launcher);
}

Finding LookAtRights(const Site& site) {
  if (site.last_capability < kCheckpointRestore) {
    return Cannot("the kernel has no CAP_CHECKPOINT_RESTORE", "install Linux 5.9 or newer");
  }
  if (!site.slurmd_rights) {
    return Note("slurmd does not run on this machine",
                "run `stasis slurm check` on a node, too, for example by srun");
  }
  if ((*site.slurmd_rights >> kCheckpointRestore & 1) == 0) {
    return Cannot("slurmd may not have CAP_CHECKPOINT_RESTORE");
  }
  if (!site.plugin || site.plugin->Argument("tcp") != "keep") {
    return Ok("slurmd can give CAP_CHECKPOINT_RESTORE to launchers");
  }
  if ((*site.slurmd_rights >> kNetwork & 1) == 0) {
    return Warn("slurmd may not have CAP_NET_ADMIN, so jobs with --stasis=tcp=keep fail",
                "start slurmd with this capability in its bounding set, or remove tcp=keep from " +
                    site.plugstack);
  }
  return Ok(
      "slurmd can give CAP_CHECKPOINT_RESTORE to launchers, and CAP_NET_ADMIN to those of "
      "jobs with --stasis=tcp=keep");
}

Finding LookAtProctrack(const Site& site) {
  const std::string found = Setting(site, "ProctrackType", "proctracktype");
  return site.config.Get("proctracktype") == "proctrack/cgroup" ? Ok(found) : Cannot(found);
}

Finding LookAtTaskPlugin(const Site& site) {
  const std::string found = Setting(site, "TaskPlugin", "taskplugin");
  return site.config.Lists("taskplugin", "task/cgroup") ? Ok(found) : Warn(found);
}

// Returns how a partition preempts its jobs, in upper case, such as "GANG,SUSPEND".
std::string PreemptMode(const Site& site, const Values& partition) {
  const std::string mode = partition.Get("preemptmode");
  return mode.empty() ? site.config.Get("preemptmode") : mode;
}

bool Requeues(const Site& site, const Values& partition) {
  return PreemptMode(site, partition).find("REQUEUE") != std::string::npos;
}

Finding LookAtPreemptMode(const Site& site) {
  if (const std::string type = site.config.Get("preempttype");
      type.empty() || type == "preempt/none") {
    return Note("no job is preempted: " + Setting(site, "PreemptType", "preempttype"),
                "none is needed, if jobs need to be continued only after `scontrol requeue`, their "
                "time limit or a failed node");
  }
  std::vector<std::string> others;
  for (const Values& partition : site.partitions) {
    const std::string mode = PreemptMode(site, partition);
    if (mode.find("SUSPEND") != std::string::npos || mode.find("CANCEL") != std::string::npos) {
      others.push_back(fmt::format("{} ({})", partition.Get("partitionname"), mode));
    }
  }
  if (!others.empty()) return Warn(fmt::format("partitions {}", fmt::join(others, ", ")));
  return Ok(Setting(site, "PreemptMode", "preemptmode"));
}

Finding LookAtRequeue(const Site& site) {
  const std::string found = Setting(site, "JobRequeue", "jobrequeue");
  if (site.config.Number("jobrequeue") == 0) return Warn(found);
  const auto release = site.release();
  // 5 is Slurm's default.
  const int64_t most = site.config.Number("maxbatchrequeue").value_or(5);
  if (release && *release >= kCountsRequeues && most < kFewRequeues) {
    return Warn(fmt::format("MaxBatchRequeue={}: preemption {} holds a job", most, most + 1),
                "MaxBatchRequeue=10000 in slurm.conf");
  }
  return Ok(found);
}

Finding LookAtRequeueExit(const Site& site) {
  if (site.config.HasNumber("requeueexithold", kDumpedExitCode)) {
    return Warn(Setting(site, "RequeueExitHold", "requeueexithold"),
                "take 75 out of it, so that dumped jobs are not held");
  }
  const std::string found = Setting(site, "RequeueExit", "requeueexit");
  return site.config.HasNumber("requeueexit", kDumpedExitCode) ? Ok(found) : Warn(found);
}

Finding LookAtDumpTime(const Site& site) {
  const int64_t kill_wait = site.config.Number("killwait").value_or(30);
  std::vector<std::string> small;
  for (const Values& partition : site.partitions) {
    const int64_t grace = partition.Number("gracetime").value_or(0);
    if (Requeues(site, partition) && grace + kill_wait < kDumpSeconds) {
      small.push_back(fmt::format("{} ({} s)", partition.Get("partitionname"), grace + kill_wait));
    }
  }
  const std::string found = fmt::format("KillWait={} s", kill_wait);
  if (small.empty()) return Ok(found);
  return Warn(fmt::format("{}; with the grace time, dumps have little time in the partitions {}",
                          found, fmt::join(small, ", ")));
}

Finding LookAtGraceSignal(const Site& site) {
  std::vector<std::string> missing;
  if (!site.config.Lists("slurmctldparameters", "preempt_send_user_signal")) {
    missing.emplace_back("SlurmctldParameters has no preempt_send_user_signal");
  }
  if (!site.config.Lists("clifilterplugins", "cli_filter/lua") &&
      !site.config.Lists("clifilterplugins", "lua")) {
    missing.emplace_back("CliFilterPlugins has no cli_filter/lua");
  }
  if (missing.empty()) return Ok("batch scripts get SIGTERM at the beginning of the grace time");
  return Warn(fmt::format("{}", fmt::join(missing, "; ")));
}

Finding LookAtMemory(const Site& site) {
  const std::string value = site.config.Get("constrainramspace");
  if (value != "yes") return Ok("the memory of jobs is not limited");
  std::vector<std::string> limits;
  for (const auto& [shown, name] : {std::pair("DefMemPerNode", "defmempernode"),
                                    {"DefMemPerCPU", "defmempercpu"},
                                    {"DefMemPerGPU", "defmempergpu"}}) {
    if (site.config.Number(name)) limits.push_back(Setting(site, shown, name) + " MiB");
  }
  return Note(fmt::format("ConstrainRAMSpace=yes, {}",
                          limits.empty() ? "without a default for jobs that ask for no memory"
                                         : fmt::format("{}", fmt::join(limits, ", "))));
}

bool IsBelow(const std::string& path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

Finding LookAtJobContainer(const Site& site) {
  const std::string type = site.config.Get("jobcontainertype");
  if (type.find("tmpfs") == std::string::npos) return Ok("jobs share /tmp and /dev/shm");
  if (!site.config.Lists("prologflags", "contain")) {
    return Warn(type + " without PrologFlags=Contain", "PrologFlags=Contain in slurm.conf");
  }
  for (const Folder* folder : {&site.images, &site.run}) {
    for (const char* own : {"/tmp", "/dev/shm"}) {
      if (IsBelow(folder->path, own)) {
        return Cannot(fmt::format("{} is below {}, which each job has for itself, until it ends",
                                  folder->path, own));
      }
    }
  }
  return Ok(type + ": GPU data in /dev/shm ends with its job");
}

Finding LookAtImages(const Site& site) {
  if (!site.images.problem.empty()) return Cannot(site.images.problem);
  const std::string found =
      fmt::format("{}, {} GiB free", site.images.path, site.images.free_bytes >> 30);
  if (site.is_root) {
    return Note(found + ", is the folder of root's own jobs", "run it as a user who submits jobs");
  }
  if (site.images.is_local && site.nodes() > 1) {
    return Warn(found + ", is on a file system of this machine alone");
  }
  return Ok(found);
}

Finding LookAtRunFolder(const Site& site) {
  if (!site.run.problem.empty()) return Cannot(site.run.problem, "make it writable for this user");
  if (!site.run.is_local && site.nodes() > 1) {
    return Warn(site.run.path + " is on a file system that other nodes may see");
  }
  return Ok(site.run.path);
}

Finding LookAtHiddenGpus(const Site& site) {
  return site.hides_gpus ? Ok("the agent hides the GPUs that a job was not granted")
                         : Note("the driver hides the GPUs that a job was not granted");
}

Finding LookAtEpilog(const Site& site) {
  const std::string found = Setting(site, "Epilog", "epilog");
  if (site.epilog_calls.value_or(false)) return Ok(found);
  if (site.config.Get("epilog").empty() || site.epilog_calls) return Note(found);
  return Note(found + ", which this user cannot read");
}

constexpr Check kChecks[] = {
    {"slurm", "Slurm's configuration, as slurmctld has it", "this check",
     "`scontrol show config` did not answer.",
     "run it where Slurm's commands work, while slurmctld runs", LookAtSlurm, false},
    {"plugin", "the line of stasis.so in plugstack.conf", "--stasis",
     "Slurm does not load the plugin: `--stasis` is an unknown option.",
     "add the line that `stasis slurm config` prints, on the nodes and where jobs are submitted",
     LookAtPlugin},
    {"plugin-release", "the release of Slurm for which the plugin was compiled", "--stasis",
     "Slurm refuses a plugin of another release.",
     "install the development files of this release of Slurm, and build Stasis with them",
     LookAtRelease},
    {"launcher", "stasis-step, which the plugin starts", "--stasis",
     "Without the launcher, jobs run without Stasis.", "install Stasis here", LookAtLauncher},
    {"rights", "whether slurmd can give the launcher CAP_CHECKPOINT_RESTORE",
     "dump and restore of users' jobs", "A dump by a user who is not root needs this capability.",
     "start slurmd outside of a container, or with this capability in its bounding set",
     LookAtRights, false},
    {"proctrack", "how Slurm tracks the processes of a job", "accounting and ending of jobs",
     "The program's parent is not the task. Other plugins than proctrack/cgroup lose track of the "
     "program, which then continues after `scancel`.",
     "ProctrackType=proctrack/cgroup in slurm.conf", LookAtProctrack},
    {"task-plugin", "control groups of tasks", "",
     "Without control groups for tasks, GPUs and memory of a job are not kept apart from those of "
     "other jobs.",
     "TaskPlugin=task/cgroup in slurm.conf, alone or with others", LookAtTaskPlugin},
    {"preempt-mode", "what Slurm does with a preempted job", "",
     "A suspended job keeps its GPUs, and a cancelled one is dumped but not started again.",
     "PreemptMode=REQUEUE in slurm.conf, for the partitions too", LookAtPreemptMode},
    {"requeue", "whether jobs can be requeued", "",
     "A job that is not requeued is not continued. Options of sbatch override JobRequeue.",
     "JobRequeue=1 in slurm.conf, or `sbatch --requeue`", LookAtRequeue},
    {"requeue-exit", "exit code 75 of tasks that were dumped", "",
     "A job that is dumped within the grace time, or before its time limit, counts as failed and "
     "is not requeued.",
     "RequeueExit=75 in slurm.conf", LookAtRequeueExit},
    {"dump-time", "the time from SIGTERM to SIGKILL", "",
     "A dump that takes longer is killed, and the job continues from an older image.",
     "KillWait=120 or more in slurm.conf", LookAtDumpTime},
    {"grace-signal", "the signal at the beginning of the grace time", "",
     "Slurm sends SIGTERM to steps, but not to batch scripts, unless their jobs ask for it by "
     "--signal=B:TERM@60. The filter does this for --stasis.",
     "SlurmctldParameters=preempt_send_user_signal and CliFilterPlugins=cli_filter/lua, with "
     "cli_filter.lua (docs/slurm.md)",
     LookAtGraceSignal},
    {"memory-limit", "limits on the memory of jobs", "",
     "GPU memory is copied to host memory at a dump, which counts against the limit of the job. A "
     "dump that does not fit goes through files, which takes longer.",
     "ask for as much host memory as a program has GPU memory, with --mem or DefMemPerGPU",
     LookAtMemory},
    {"job-container", "private folders of jobs (job_container/tmpfs)", "requeued jobs",
     "Files in these folders are deleted when the job ends or is requeued.",
     "set folders.state in the configuration to a folder that all nodes share", LookAtJobContainer},
    {"images", "the folder of images", "dump",
     "A job that is requeued to another node needs its images there.",
     "set folders.state or folders.images to a folder that all nodes share, or use "
     "--stasis=to=REPO",
     LookAtImages, false},
    {"run-folder", "the folder of journals and locks", "everything",
     "Each operation locks a journal and records every step in it. In a folder that nodes share, "
     "those of a node that has failed stay until `stasis kill --lost JOB`.",
     "run = \"/var/tmp/stasis-%u\" in the table [folders] of /etc/stasis/config.toml",
     LookAtRunFolder, false},
    {"hidden-gpus", "whether a job can continue on a GPU with another index", "",
     "A program that was started under CUDA_VISIBLE_DEVICES can use only GPUs with these indexes. "
     "If the agent hides the GPUs, it can continue on others, unless it uses the CUDA runtime.",
     "hide_gpus = true in the table [run] of /etc/stasis/config.toml", LookAtHiddenGpus, false},
    {"epilog", "what is done after a job", "",
     "If slurmstepd is killed with its job, GPU data stays in the node's memory until the next "
     "command of the same user.",
     "let the Epilog program run `stasis slurm epilog`", LookAtEpilog},
};

}  // namespace

std::span<const Check> Checks() { return kChecks; }

std::vector<Judged> JudgeSite(const Site& site) {
  std::vector<Judged> judged;
  for (const Check& check : kChecks) {
    const bool skipped = check.needs_config && !site.problem.empty();
    if (!skipped) judged.push_back({&check, check.look(site)});
  }
  for (Judged& one : judged) {
    Finding& finding = one.finding;
    if (finding.level != Level::kOk && finding.fix.empty()) finding.fix = one.check->fix;
  }
  return judged;
}

}  // namespace stasis::slurm_setup
