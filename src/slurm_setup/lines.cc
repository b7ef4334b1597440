#include "slurm_setup/lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "slurm_setup/findings.h"

namespace stasis::slurm_setup {
namespace {

constexpr int kManyRequeues = 10000;

// Returns the line of the plugin for Slurm's release. If there is none, the reason says so.
ConfigLine PluginLineFor(const LineOptions& options) {
  const InstalledPlugin* plugin = PluginFor(options.plugins, options.release);
  ConfigLine line{"optional " + (plugin != nullptr ? plugin->path : DefaultPlugin(options.root)),
                  "After all other lines. With `required`, a missing file would make all jobs "
                  "fail."};
  if (!options.partitions.empty()) {
    line.text += fmt::format(" partitions={}", fmt::join(options.partitions, ","));
  }
  if (options.release && plugin == nullptr) {
    line.reason +=
        fmt::format(" Slurm {} refuses this plugin: the installation has plugins for {}.",
                    ToString(*options.release), ReleasesOf(options.plugins));
  }
  return line;
}

}  // namespace

std::vector<ConfigFile> LinesFor(const LineOptions& options) {
  std::vector<ConfigLine> slurm = {
      {"ProctrackType=proctrack/cgroup",
       "Keeps track of the program, whose parent is not the task."},
      {"TaskPlugin=task/cgroup", "Keeps GPUs and memory of jobs apart. Others may follow it."},
      {"JobRequeue=1", "A job must be requeued to be continued."},
      {"RequeueExit=75", "A task that was dumped exits with this code."},
      {fmt::format("KillWait={}", kDumpSeconds),
       "The time from SIGTERM to SIGKILL, in which a dump must end. More for large GPUs and slow "
       "disks."},
      {"PreemptType=preempt/partition_prio",
       "Only if jobs are to be preempted. A suspended job would keep its GPUs, hence REQUEUE."},
      {"PreemptMode=REQUEUE", ""},
      {"SlurmctldParameters=preempt_send_user_signal",
       "Batch scripts get SIGTERM at the beginning of the grace time. cli_filter.lua of Stasis "
       "belongs beside slurm.conf."},
      {"CliFilterPlugins=cli_filter/lua", ""},
      {"Epilog=/etc/slurm/epilog.sh", "Frees what a killed job has left; the file is below."}};
  if (!options.release || *options.release >= kCountsRequeues) {
    slurm.push_back({fmt::format("MaxBatchRequeue={}", kManyRequeues),
                     "Slurm 24.05 and newer counts preemptions, and holds a job after the fifth."});
  }
  return {
      {"slurm.conf", std::move(slurm)},
      {"plugstack.conf", {PluginLineFor(options)}},
      {"cgroup.conf",
       {{"ConstrainRAMSpace=yes",
         "A dump copies GPU memory to host memory. Jobs need as much host memory (--mem)."},
        {"ConstrainDevices=yes", "A job can open only the GPUs that it was granted."}}},
      {"/etc/stasis/config.toml",
       {{"[folders]", ""},
        {"run = \"/var/tmp/stasis-%u\"",
         "Journals and locks of each node apart, because nodes share homes."}}},
      {"epilog.sh",
       {{"#!/bin/sh", ""},
        {options.root + "/bin/stasis -q slurm epilog || true",
         "Slurm drains a node whose Epilog fails, hence `|| true`."}}},
  };
}

std::string TextOf(const std::vector<ConfigFile>& files) {
  std::string text;
  for (const ConfigFile& file : files) {
    text += fmt::format("{}### {} ###\n", text.empty() ? "" : "\n", file.name);
    for (const ConfigLine& line : file.lines) {
      if (!line.reason.empty()) text += "# " + line.reason + "\n";
      text += line.text + "\n";
    }
  }
  return text;
}

}  // namespace stasis::slurm_setup
