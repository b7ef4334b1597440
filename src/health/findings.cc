#include "health/findings.h"

#include <algorithm>

namespace stasis::health {
namespace {

constexpr char kAsRoot[] = "run it as root: `sudo stasis check`";
constexpr char kAllGpu[] = "everything that needs a GPU";
constexpr char kImages[] = "dump and restore";
constexpr char kAway[] = "suspend and dump";

constexpr Kind kMachine[] = {
    {"installation", "Stasis's own programs", "everything",
     "A program of Stasis is missing or cannot be run.",
     "unpack the release again; in a checkout, run `./run build`"},
    {"kernel", "the kernel", kImages, "CRIU and the agent need system calls of Linux 5.9 or newer.",
     "install a newer kernel"},
    {"user-namespace", "whether root in this shell is root on the machine", "",
     "In a user namespace, root has no privileges on the machine: CRIU can neither read the "
     "mappings of other programs nor choose process ids.",
     "run Stasis outside of the rootless container"},
    {"privileges", "this user's rights to dump and restore", kImages,
     "CRIU needs privileges that this user does not have. Suspend and resume of the user's own "
     "programs work without them.",
     kAsRoot},
    {"resource-limits", "whether root may read the limits of other users' programs",
     "dump of another user's program",
     "CRIU reads the limits of each process. Without CAP_SYS_RESOURCE, root may read only those of "
     "its own programs.",
     "if this is a container, start it with --cap-add SYS_RESOURCE"},
    {"criu", "the CRIU that is used", kImages, "CRIU is missing or too old.",
     "run `./run setup` in a checkout, or install your distribution's `criu` package if it is 4.1 "
     "or newer"},
    {"chosen-pid", "whether a process can be given its old process id", "restore",
     "A restored program gets its previous process ids, and this user may not choose process ids.",
     kAsRoot},
    {"ptrace", "whether processes can be stopped and inspected", kImages,
     "CRIU stops programs by ptrace.", kAsRoot},
    {"criu-check", "CRIU's own check of the kernel", kImages,
     "The kernel lacks something that CRIU needs.", "`criu check` lists what is missing"},
    {"vector-registers", "registers of arm64 processors that CRIU does not save", "",
     "CRIU saves 16 bytes of each vector register, and no predicate registers (SVE, SME). A thread "
     "that a dump stops between two such instructions continues with wrong values, also with "
     "--leave-running. A thread that waits in a system call is safe. Suspend and resume do not use "
     "CRIU.",
     "boot the kernel with `arm64.nosve arm64.nosme`; programs then do not use them"},
    {"ptrace-scope", "Yama's restriction of ptrace", "suspend and resume by the agent, dump",
     "Stasis needs ptrace permission for a program to reach its agent. With 1, a user has this "
     "permission only for children of the same shell; with 2, only root has it; with 3, no user "
     "has it.",
     "`sudo sysctl kernel.yama.ptrace_scope=0`"},
    {"driver", "the GPU's driver", kAllGpu,
     "Without a working driver with the checkpoint interface (570 or newer) no GPU state can be "
     "saved.",
     "install NVIDIA's driver 580 or newer; README.md explains how to try Stasis without a GPU"},
    {"driver-can", "features of this driver version", "",
     "The driver lacks a feature of newer versions.", "install a newer driver"},
    {"gpus", "the GPUs", kAllGpu, "The driver reports no GPU.",
     "`nvidia-smi -L` lists the GPUs that the driver sees; a container must be started with access "
     "to the GPUs"},
    {"persistence", "the persistence mode of the GPUs", "",
     "The driver shuts down an unused GPU, and the next program or command waits several seconds "
     "until the GPU has started again. Nothing fails, because Stasis's helpers start the driver "
     "themselves.",
     "`sudo nvidia-smi -pm 1`"},
    {"gpu-memory-free", "room on each GPU for a mover", "",
     "A mover needs 270 to 540 MiB of a GPU's memory for its own context while it copies. If that "
     "is not free, suspend and resume of programs under the agent are refused.",
     "end or suspend other programs on that GPU: `stasis gpu ls`"},
    {"host-memory", "free host memory", "",
     "Suspended data is kept in host memory, which is too small for all the data on the GPUs.",
     "free or add memory, or suspend to a disk with --spill DIR"},
    {"huge-pages", "transparent huge pages", "",
     "Without huge pages, filling host memory takes longer: the driver's checkpoint of 32 GiB took "
     "14 to 21 s, and 10 s with `always`. Arenas use huge pages unless `shmem_enabled` is `deny`.",
     "`sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'`"},
    {"reserved-huge-pages", "reserved huge pages (hugetlbfs)", "",
     "This memory is reserved for programs that ask for huge pages explicitly. Stasis does not, so "
     "this memory cannot hold suspended data.",
     "if no program uses them, run `sudo sysctl vm.nr_hugepages=0`"},
    {"memlock", "how much memory programs of this user may lock", "",
     "Programs inherit this limit from the shell that starts them. A program that locks memory "
     "(mlock, RDMA) may fail. A program that has locked more than the limit can be restored only "
     "with a higher limit.",
     "run `ulimit -l unlimited`, or set `memlock` in /etc/security/limits.conf"},
    {"run-folder", "room for journals and locks", "everything",
     "Each operation records every step in a journal before it begins the step.",
     "free space on that file system"},
    {"image-store", "room for images", "dump",
     "An image contains CPU and GPU memory, except data that earlier images have.",
     "free space there, delete images (`stasis image ls`), or choose another store with -d"},
    {"disk-speed", "how fast images are written and read (with --full)", "dump",
     "A dump is limited by the speed of this disk.",
     "put images on a faster disk: `folders.images` in the configuration"},
    {"agent", "whether the agent works in a program (with --full)",
     "suspend and resume by the data plane",
     "A small program was started with the agent in LD_PRELOAD, and the agent did not answer "
     "correctly.",
     "`stasis run --no-agent` starts programs without it; please report this"},
    {"mover", "whether a mover starts on each GPU (with --full)",
     "suspend and resume by the data plane",
     "A mover copies between GPU memory and host memory. Without one, programs under the agent are "
     "refused.",
     "end or suspend other programs on that GPU: `stasis gpu ls`"},
    {"containers", "container runtimes on a machine that is not set up for them", "",
     "CRIU alone cannot checkpoint a GPU program in a container. With Stasis's plugin in CRIU, "
     "the commands of podman, containerd and runc can.",
     "run `sudo stasis container setup` if GPU programs run in containers here"},
    {"container-plugin", "CRIU's plugin of this installation", "checkpoints of containers",
     "CRIU fails for every container if the folder in its configuration does not exist.",
     "unpack the release again, or run `sudo stasis container remove`"},
    {"container-criu", "CRIU's configuration, which all runtimes read",
     "checkpoints of GPU containers", "CRIU loads plugins from the one folder that `libdir` names.",
     "`sudo stasis container setup`"},
    {"container-daemon", "the daemon to which CRIU's plugin connects",
     "checkpoints of GPU containers",
     "stasisd saves and restores the GPU state for the plugin, which only sends requests.",
     "run `systemctl start stasisd` or `sudo stasis daemon start`"},
    {"container-cdi", "the CDI device that loads the agent in containers",
     "containers with --device stasis.dev/agent=on",
     "Without the agent the driver saves the GPU memory, and a container with several GPU "
     "processes cannot be checkpointed.",
     "`sudo stasis cdi install`"},
    {"container-network", "the program with which CRIU locks the network of a container",
     "checkpoints of containers with their own network",
     "CRIU stops the traffic of a container with its own network during a checkpoint, by default "
     "with iptables.",
     "install iptables"},
    {"podman", "podman, the runtime that it uses, and their CRIU", "checkpoints by podman",
     "podman needs a runtime that was compiled with CRIU, and a CRIU on its PATH.",
     "docs/containers.md"},
    {"containerd", "containerd and its CRIU", "checkpoints by containerd",
     "containerd's shims start the CRIU on the daemon's PATH.", "docs/containers.md"},
    {"runc", "runc and its CRIU", "checkpoints by runc", "runc starts the CRIU on its PATH.",
     "docs/containers.md"},
};

constexpr Kind kTarget[] = {
    {"program", "the program as a whole", "", "", ""},
    {"program-answers", "whether its memory and open files can be read", "everything",
     "Another program or a server provides a part of its memory or an open file (userfaultfd, "
     "FUSE, NFS), and does not answer.",
     "end or repair that program or server"},
    {"traced", "debuggers and tracers", kAway,
     "A process can have one tracer, and CRIU must be that tracer.",
     "detach the debugger or strace"},
    {"zombie", "whether it has ended", "everything", "Only its exit code is left.", ""},
    {"gpu-failed", "its GPU state", "everything",
     "An earlier restore of its GPU state failed, and the driver does not allow another one.",
     "end the program; an earlier image of it can be restored"},
    {"gpu-sharing", "NCCL and other ways of sharing GPU memory", kAway,
     "The driver cannot restore GPU memory that processes share without agents: the program would "
     "be lost.",
     "docs/nccl.md lists what works"},
    {"nccl-beside", "other jobs with NCCL on its GPUs", "",
     "The driver does not preempt kernels of a context that it has restored: two such jobs would "
     "wait for each other until the driver ends them. Suspend, resume and dump --leave-running are "
     "therefore refused.",
     "`suspend --keep-context` and `dump` work; or suspend or end the other job first"},
    {"gpu-memory", "the kinds of its GPU memory, as reported by its agents", kAway,
     "Some of its GPU memory can be saved neither by the data plane nor by the driver (managed "
     "memory, memory that other processes have open), or its limit on open files is too low for a "
     "resume.",
     "docs/compatibility.md lists which kinds of memory can be saved"},
    {"left-to-driver", "whether the data plane can save it", "",
     "The driver saves the memory instead, at about 2 GB/s, and restores it at about 6 GB/s.",
     "start it with `stasis run`, which loads the agent"},
    {"gpu-files", "forked children that hold GPU files", "dump",
     "A child forked without exec has inherited files that CRIU cannot save.",
     "start the program with `stasis run`: the agent closes these files in its children"},
    {"gpu-driver", "the driver of its GPUs", "dump",
     "CRIU's plugin for AMD GPUs saves what stays with the driver of a HIP program. The plugin, "
     "the "
     "kernel driver or HIP's library is missing or cannot be used.",
     "`stasis suspend` and `stasis resume` work (docs/amd.md)"},
    {"other-job", "other jobs among its processes", "dump",
     "The dump would end that job too, without an image of its own.",
     "dump that job first, or end it"},
    {"background", "processes that have left its tree", "dump",
     "An image contains only the process tree.", "run them in the foreground, or end them"},
    {"pid-namespace", "its pid namespace", "dump",
     "The program is in a pid namespace that is neither this command's nor made by Stasis.",
     "run Stasis in the program's container"},
    {"mount-namespace", "its mount namespace", "dump",
     "The program has its own mounts, as in a container. Stasis cannot restore them.",
     "dump the container by its name, so that its runtime checkpoints it: `stasis dump "
     "podman:NAME`"},
    {"container-exec", "processes outside of the container's tree", "",
     "A process that `exec` started in a container is not a descendant of the container's first "
     "process. The runtime leaves it out of a checkpoint, and it ends with the container.",
     "end it before the checkpoint, or use --leave-running"},
    {"container-hook", "mounts of NVIDIA's legacy container hook", "dump",
     "The hook mounts the driver's files after the runtime has made the container. They are not in "
     "the container's specification, so its runtime cannot restore them.",
     "start the container with CDI: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, then "
     "`--device nvidia.com/gpu=all`"},
    {"session", "its session", "dump",
     "CRIU can restore only a session that began in the pid namespace of the program.",
     "start it with `setsid`, or by `stasis run`"},
    {"stdio", "its input, output and terminal", "dump",
     "Input and output outside of its process tree are restored as another file, or not at all.",
     ""},
    {"io_uring", "io_uring", "dump", "CRIU cannot save the kernel's rings.",
     "start it with USE_LIBUV=0 (PyTorch) or UV_USE_IO_URING=0 (Node.js), or disable io_uring in "
     "the "
     "program"},
    {"special-file", "other special files", "dump", "CRIU cannot save them.",
     "disable the feature that uses them"},
    {"device", "device files", "dump", "The program uses a device whose state cannot be saved.",
     "have the program close it before a dump"},
    {"deleted-file", "files that were deleted", "dump",
     "Only the program still has these files, so the image would have to contain them.",
     "use --link-remap, or raise the limit with --criu-opt ghost-limit=BYTES"},
    {"file-lock", "file locks", "dump",
     "Another program may have taken the lock before the restore.",
     "--file-locks takes them again at the restore"},
    {"tcp", "open TCP connections", "dump",
     "The peer does not know of the dump: it waits, times out, or continues without the program.",
     "--tcp=close cuts them, --tcp=keep keeps them"},
    {"tcp-in-flight", "connections that have not been accepted yet", "dump",
     "CRIU cannot save a connection that the program has not accepted.",
     "try again, or drop them with --criu-opt skip-in-flight"},
    {"socket", "other sockets", "dump", "CRIU cannot save them.",
     "disable the feature that uses them"},
    {"unix-socket", "connections to programs outside of its tree", "dump",
     "CRIU cannot save a connection if only one end is in the program.",
     "have the program close it before a dump"},
    {"program-memory", "host memory for its GPU data", kAway,
     "The data would not fit into this machine's memory, or its control group's.",
     "free memory, or use --ignore-memory on a machine that gets more memory on demand"},
    {"image-space", "room for its image", "dump", "The store has too little free space.",
     "free space, or choose another store with -d"},
    {"watchdog-device", "/dev/watchdog", "",
     "If the pause is longer than the timeout of the watchdog, the machine restarts.",
     "have the program disarm and close it first"},
    {"watchdog-systemd", "systemd's watchdog of its unit", "",
     "systemd kills a unit that does not report in time, so the pause must be shorter than the "
     "timeout. A dump ends the program, and its unit may then restart it.",
     "set WatchdogSec=0, and Restart=no for a dump, with `systemctl edit UNIT`"},
    {"watchdog-thread", "threads that detect a hung program", "",
     "PyTorch ends a program whose collectives exceed a timeout. The time during which the program "
     "is suspended counts too.",
     "keep the pause below the timeout of init_process_group, or raise that timeout"},
    {"timers", "timers that are running", "",
     "A timer continues to run while the program is suspended. After a restore, the timer "
     "continues with the time that was left at the dump.",
     ""},
    {"inotify", "watched files", "", "Changes during the pause are not reported to the program.",
     ""},
    {"locked-memory", "memory that it has locked", "",
     "A restore locks the memory again. This needs a sufficient limit on locked memory, and that "
     "much free memory.",
     ""},
    {"other", "anything else", "dump", "", ""},
};

constexpr const char* kLevelNames[] = {"ok", "note", "warning", "cannot"};

}  // namespace

std::string_view LevelName(Level level) { return kLevelNames[static_cast<size_t>(level)]; }

std::span<const Kind> MachineKinds() { return kMachine; }
std::span<const Kind> TargetKinds() { return kTarget; }

const Kind& KindOf(std::string_view id) {
  for (auto kinds : {MachineKinds(), TargetKinds()}) {
    for (const Kind& kind : kinds) {
      if (id == kind.id) return kind;
    }
  }
  return TargetKinds().back();
}

Finding Finding::Of(std::string_view id, Level level, std::string found, std::string fix) {
  const Kind& kind = KindOf(id);
  if (fix.empty() && level >= Level::kWarning) fix = kind.fix;
  return {&kind, level, std::move(found), std::move(fix)};
}

bool IsAble(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& finding) { return finding.level == Level::kCannot; });
}

}  // namespace stasis::health
