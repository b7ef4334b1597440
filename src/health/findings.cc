#include "health/findings.h"

#include <algorithm>

namespace stasis::health {
namespace {

constexpr char kAsRoot[] = "run it as root: `sudo stasis check`";
constexpr char kAllGpu[] = "everything that needs a GPU";
constexpr char kImages[] = "dump and restore";
constexpr char kAway[] = "suspend and dump";

constexpr Kind kMachine[] = {
    {"installation", "the programs of Stasis itself", "everything",
     "A program that Stasis starts is missing or cannot be run.",
     "unpack the release again; in a checkout `./run build`"},
    {"kernel", "the kernel", kImages,
     "CRIU and the agent need calls that came with this kernel at the latest: 5.9.",
     "start a newer kernel"},
    {"user-namespace", "whether this shell's root is the machine's", "",
     "In a user namespace root has no rights over the machine: CRIU cannot read what other "
     "programs have mapped, nor choose process ids.",
     "run it outside of the rootless container"},
    {"privileges", "this user's rights to dump and restore", kImages,
     "CRIU needs rights that this user has not. Suspend and resume of the user's own programs work "
     "without them.",
     kAsRoot},
    {"resource-limits", "whether root may read the limits of other users' programs",
     "dump of another user's program",
     "CRIU reads the limits of each process. Without CAP_SYS_RESOURCE root may do that only for "
     "its "
     "own programs.",
     "in a container, start that with --cap-add SYS_RESOURCE"},
    {"criu", "the CRIU that is used", kImages, "There is none, or it is too old.",
     "`./run setup` in a checkout, or install your distribution's package when it is 4.1 or newer"},
    {"chosen-pid", "whether a process can be given its old process id", "restore",
     "A program comes back under the process ids that it had, and this user may not choose them.",
     kAsRoot},
    {"ptrace", "whether processes can be stopped and looked into", kImages,
     "CRIU stops programs by ptrace.", kAsRoot},
    {"criu-check", "CRIU's own check of the kernel", kImages,
     "The kernel lacks something that CRIU needs.", "`criu check` lists what is missing"},
    {"ptrace-scope", "Yama's restriction of ptrace", "suspend and resume by the agent, dump",
     "The agent of a program is reached by a right to ptrace it. With 1 a plain user has that only "
     "over what the same shell has started, with 2 only root has it, with 3 nobody.",
     "`sudo sysctl kernel.yama.ptrace_scope=0`"},
    {"driver", "the GPU's driver", kAllGpu,
     "Without a driver that answers and has the checkpoint interface (570 or newer) no GPU state "
     "can be saved.",
     "install NVIDIA's driver 580 or newer; without a GPU: `softgpu -- CMD`"},
    {"driver-can", "what this version of the driver can do", "",
     "The version lacks something that newer ones have.", "install a newer driver"},
    {"gpus", "the GPUs", kAllGpu, "The driver shows no GPU.",
     "`nvidia-smi -L` shows what the driver sees; in a container, give it the GPUs"},
    {"persistence", "the persistence mode of the GPUs", "",
     "When nobody uses the GPU the driver shuts it down, and the next program or command starts it "
     "again, which takes seconds. Stasis's helpers start the driver themselves, so nothing fails.",
     "`sudo nvidia-smi -pm 1`"},
    {"gpu-memory-free", "room on each GPU for a mover", "",
     "A mover needs 270 to 540 MiB of a GPU's memory for its own context while it copies. Where "
     "that is not free, a suspend of a program under the agent is refused, and a resume too.",
     "end or suspend what else uses that GPU: `stasis gpu ls`"},
    {"host-memory", "free host memory", "",
     "What is suspended lies in host memory: not all that the GPUs hold fits there.",
     "free or add memory, or suspend to a disk with --spill DIR"},
    {"huge-pages", "transparent huge pages", "",
     "Without huge pages host memory is slower to fill: the driver's checkpoint of 32 GiB took 14 "
     "to 21 s, and 10 s with `always`; arenas are made of them unless `shmem_enabled` says `deny`.",
     "`sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'`"},
    {"reserved-huge-pages", "huge pages that are set aside (hugetlbfs)", "",
     "This memory is kept for programs that ask for it by name. Stasis does not, so it is missing "
     "for suspended data.",
     "`sudo sysctl vm.nr_hugepages=0`, where no program uses them"},
    {"memlock", "how much memory programs of this user may lock", "",
     "Programs get this limit from the shell that starts them. One that locks memory (mlock, RDMA) "
     "may fail on it, and one that has locked more comes back only where the restore may lock as "
     "much.",
     "`ulimit -l unlimited`, or `memlock` in /etc/security/limits.conf"},
    {"run-folder", "room for journals and locks", "everything",
     "Each operation writes down what it is about to do before it does it.",
     "free space on that file system"},
    {"image-store", "room for images", "dump",
     "An image takes what CPU and GPU memory hold, less what earlier images have.",
     "free space there, delete images (`stasis image ls`), or choose another folder with -d"},
    {"disk-speed", "how fast images are written and read (with --full)", "dump",
     "A dump takes as long as its bytes need to reach this disk.",
     "put images on a faster disk: `folders.images` in the configuration"},
    {"agent", "whether programs start under the agent, and it answers (with --full)",
     "suspend and resume by the data plane",
     "A small program was started with the agent in LD_PRELOAD, and the agent in it did not answer "
     "as it should.",
     "`stasis run --no-agent` goes round it; please report this"},
    {"mover", "whether a mover starts on each GPU (with --full)",
     "suspend and resume by the data plane",
     "A mover copies between GPU memory and host memory. Without one, programs under the agent are "
     "refused.",
     "end or suspend what else uses that GPU: `stasis gpu ls`"},
};

constexpr Kind kTarget[] = {
    {"program", "the program as a whole", "", "", ""},
    {"program-answers", "whether its memory and its open files can be looked at", "everything",
     "It, another program or a server supplies a part of its memory or a file that it has open "
     "(userfaultfd, FUSE, NFS), and does not answer.",
     "end or repair what does not answer"},
    {"traced", "debuggers and tracers", kAway,
     "A process has one tracer at most, and CRIU needs to be it.", "detach the debugger or strace"},
    {"zombie", "whether it has ended", "everything", "Only its exit code is left.", ""},
    {"gpu-failed", "the state of its GPU side", "everything",
     "An earlier restore of its GPU state has failed, which the driver calls final.",
     "end the program; an earlier image of it can be restored"},
    {"gpu-sharing", "NCCL and other ways of sharing GPU memory", kAway,
     "What is shared past the agents the driver takes away and does not bring back: the program "
     "would be lost.",
     "docs/nccl.md says what works"},
    {"nccl-beside", "other jobs with NCCL on its GPUs", "",
     "What the driver brings back is not switched away in the middle of a kernel: two such jobs "
     "would wait for each other until the driver ends them. So suspend, resume and dump "
     "--leave-running are refused meanwhile.",
     "`suspend --keep-context` and `dump` work; or suspend or end the other job first"},
    {"gpu-memory", "what its GPU memory is, by the word of its agents", kAway,
     "Some of its GPU memory can neither be carried nor be left to the driver (managed memory, "
     "memory that others have open), or it may open too few files to have it back.",
     "docs/compatibility.md lists kinds of memory"},
    {"left-to-driver", "whether the data plane carries it", "",
     "It works, at the driver's speed: some 2 GB/s out and 6 GB/s back.",
     "start it by `stasis run`, which puts the agent into it"},
    {"gpu-files", "forked children that hold GPU files", "dump",
     "A child forked without exec has inherited files that CRIU cannot save.",
     "start the program by `stasis run`: the agent takes them from its children"},
    {"other-job", "jobs of their own among its processes", "dump",
     "The dump would end that job too, which would not know of the image.",
     "dump that job first, by its name, or end it"},
    {"background", "processes that have left its tree", "dump", "An image holds a tree.",
     "have them stay in the foreground, or end them"},
    {"pid-namespace", "its pid namespace", "dump", "It is neither ours nor one that Stasis made.",
     "run Stasis in the program's own container"},
    {"mount-namespace", "its mount namespace", "dump",
     "It has mounts of its own, as in a container. They could be saved, but not restored.",
     "have the container's runtime checkpoint a container"},
    {"session", "its session", "dump",
     "CRIU can give a program back only a session that began in its own pid namespace.",
     "start it with `setsid`, or by `stasis run`"},
    {"stdio", "its input, output and terminal", "dump",
     "What leads out of the program's tree comes back as something else, or as nothing.", ""},
    {"io_uring", "io_uring", "dump", "CRIU cannot save the kernel's rings.",
     "start it with UV_USE_IO_URING=0 (libuv), or switch io_uring off in the program"},
    {"special-file", "other special files", "dump", "CRIU cannot save them.",
     "switch off what needs them in the program"},
    {"device", "device files", "dump", "The state behind a device is not the program's.",
     "have the program close it before a dump"},
    {"deleted-file", "files that were deleted", "dump",
     "Nothing but the program holds them any more, so the image would have to.",
     "--link-remap, or --criu-opt ghost-limit=BYTES"},
    {"file-lock", "file locks", "dump", "Somebody else may have taken the lock by the restore.",
     "--file-locks takes them again at the restore"},
    {"tcp", "open TCP connections", "dump",
     "The other side does not know of the dump: it waits, gives up, or goes on without.",
     "--tcp=close cuts them, --tcp=keep keeps them"},
    {"tcp-in-flight", "connections that wait to be accepted", "dump",
     "They are the kernel's still.", "try again, or --criu-opt skip-in-flight"},
    {"socket", "other sockets", "dump", "CRIU cannot save them.",
     "switch off what needs them in the program"},
    {"unix-socket", "connections to programs outside of its tree", "dump",
     "Half a connection cannot be saved.", "have the program close it before a dump"},
    {"program-memory", "host memory for its GPU data", kAway,
     "The data would not fit into this machine's memory, or its control group's.",
     "free memory, or --ignore-memory where memory grows as it is used"},
    {"image-space", "room for its image", "dump", "The image would not fit.",
     "free space, or choose another folder with -d"},
    {"watchdog-device", "/dev/watchdog", "",
     "Who feeds a watchdog and pauses for longer than its time has the machine restarted.",
     "have the program close it in the proper way first"},
    {"watchdog-systemd", "systemd's watchdog of its unit", "",
     "A program that cannot tell systemd in time that it is alive is killed: the pause must be "
     "shorter. A dump ends it anyhow, and its unit may start it anew.",
     "`systemctl edit UNIT`: WatchdogSec=0, and Restart=no for a dump"},
    {"watchdog-thread", "threads that watch for a program that hangs", "",
     "PyTorch ends a program whose collectives take longer than a time of their own; time goes on "
     "while it is suspended.",
     "keep the pause below the timeout of init_process_group, or make that longer"},
    {"timers", "timers that are running", "",
     "A timer goes on while the program is suspended. After a restore it has what was left of it "
     "at the dump.",
     ""},
    {"inotify", "watched files", "", "What happens to them while the program is away goes unseen.",
     ""},
    {"locked-memory", "memory that it has locked", "",
     "It comes back locked: the restore needs the right to lock as much, and the machine as much "
     "memory that cannot be swapped.",
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
