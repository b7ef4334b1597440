"""A cluster of Slurm's own daemons on this machine: a controller and two nodes, each with one software GPU, with
Stasis's plugin, and an ordinary user who submits jobs."""

import copy
import os
import pathlib
import re
import socket
import stat
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
import processes  # noqa: E402
from processes import Late, wait_until  # noqa: E402
from world import Failed, World, demand  # noqa: E402

ALICE = 4001
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel")
GPU = "--gres=gpu:own:1"  # the GPU of the job's node
# Seconds until an event that takes a second or two on an idle machine.
SOON_S = 90
ENDED = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=30
CryptoType=crypto/munge
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/spool/ctld
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmUser=root
GresTypes=gpu
ReturnToService=2
JobRequeue=1
RequeueExit=75
KillWait={kill_wait}
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
PlugStackConfig={folder}/plugstack.conf
CliFilterPlugins=cli_filter/lua
{more}
NodeName=DEFAULT CPUs=2 RealMemory=1000
NodeName={prefix}1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 Gres=gpu:own:1,gpu:other:1
NodeName={prefix}2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 Gres=gpu:other:1,gpu:own:1
PartitionName=low Nodes={nodes} Default=YES PriorityTier=1
PartitionName=grace Nodes={nodes} PriorityTier=1 GraceTime=20
PartitionName=high Nodes={nodes} PriorityTier=10 PreemptMode=OFF
"""


def release():
    """Returns this machine's release of Slurm, such as (22, 5). slurmd tells it without a configuration."""
    said = subprocess.run(["slurmd", "-V"], env={"PATH": "/usr/sbin:/usr/bin"}, text=True, capture_output=True,
                          check=False).stdout  # "slurm-wlm 24.11.5"
    return tuple(map(int, re.search(r" (\d+)\.(\d+)\.", said).groups()))


def plugin_of(build):
    """Returns the path of the plugin for this machine's release of Slurm. Default: that for the release whose headers were
    installed when Stasis was built."""
    other = pathlib.Path(build) / "lib/stasis/slurm-{}.{:02}/stasis.so".format(*release())
    return other if other.exists() else pathlib.Path(build) / "lib/stasis/slurm/stasis.so"


def missing(build):
    """Returns the parts of Slurm that this machine lacks, and those of Stasis that this build lacks."""
    parts = [name for name in PROGRAMS if not any(
        os.access(f"{folder}/{name}", os.X_OK) for folder in ("/usr/bin", "/usr/sbin"))]
    if not parts and not plugin_of(build).exists():
        parts.append(f"{plugin_of(build)} (it is built if slurm/spank.h exists: libslurm-dev)")
    return parts


def move_to(place, build):
    """Makes the checkout and the build visible below `place`, where a job with a /tmp of its own sees them too. Returns
    the new path of the build."""
    isolate.mount("tmpfs", place, "tmpfs", isolate.MS_NOSUID, "mode=755")
    source, build = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(build).resolve()
    moved = {source: pathlib.Path(place) / "source", build: pathlib.Path(place) / "build"}
    for path, there in moved.items():
        there.mkdir()
        isolate.mount(str(path), str(there), flags=isolate.MS_BIND)
    # The build has a link with the old path.
    criu = pathlib.Path(os.path.realpath(os.environ.get("STASIS_CRIU", build / "libexec" / "criu")))
    if criu.is_relative_to(source):
        os.environ["STASIS_CRIU"] = str(moved[source] / criu.relative_to(source))
    return moved[build]


def oldest_cpu():
    """Returns a CPU on which a new mount namespace has a lower number than any that is created later."""
    probe = """mount -t tmpfs none "$1" || exit
shift
for cpu; do
  mkfifo /mnt/ready /mnt/done && touch /mnt/space || exit
  taskset -c "$cpu" unshare --mount sh -c 'echo >/mnt/ready; read x </mnt/done' &
  read x </mnt/ready
  mount --bind "/proc/$!/ns/mnt" /mnt/space 2>/dev/null; result=$?
  echo >/mnt/done
  wait
  [ $result = 0 ] || exit
  umount /mnt/space
  rm /mnt/ready /mnt/done
done
"""
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    for cpu in cpus:
        if subprocess.run(["taskset", "-c", cpu, "unshare", "--mount", "sh", "-c", probe, "sh", "/mnt", *cpus],
                          timeout=60, check=False).returncode == 0:
            return cpu
    raise Failed("no mount namespace can be mounted")


class Cluster:
    """Call start() before any other method, and stop() at the end."""

    def __init__(self, build, kill_wait=30, requeues=10, epilog=False, place="/tmp"):
        self.requeues = requeues
        if place != "/tmp":
            build = move_to(place, build)
        self.world = World(build, devices=2, memory="512M", uid=ALICE, place=place)
        self.folder = self.world.folder / "slurm"
        self.more = [f"Epilog={self.folder}/epilog.sh"] if epilog else []  # lines of slurm.conf
        if release() >= (24, 5):
            self.more.append("MaxBatchRequeue=10000")
        self.plugin = plugin_of(self.world.build)
        self.kill_wait = kill_wait
        # Control groups of nodes are named after them, and other tests may run at the same time.
        self.prefix = f"n{os.stat('/proc/self/ns/pid').st_ino}x"
        self.nodes = [f"{self.prefix}{number}" for number in (1, 2)]
        self.env = {**self.world.env, "SLURM_CONF": str(self.folder / "slurm.conf"),
                    "PATH": f"/usr/sbin:/usr/bin:/sbin:/bin:{self.world.bin}",
                    "STASIS_HIDE_GPUS": "1"}  # otherwise no program could continue on another GPU
        self.prefix_of_slurmd = []  # words before its command
        self._daemons = {}
        self._gpus = None

    # Set-up.

    def start(self):
        self.world.folder.chmod(0o755)
        self.folder.mkdir()
        for name in ("munge", "spool", "spool/ctld", "dev"):
            (self.folder / name).mkdir(mode=0o755)
        self._add_address()
        self._add_user()
        self._add_driver()
        self.world.accept_mounts()
        self._configure()
        self._start_gpus()
        self._start_munge()
        for name in ("slurmctld", *self.nodes):
            self._start(name)
        self.await_idle()

    def await_idle(self):
        """Waits until no job runs or completes."""
        def idle():
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            demand(not ended, lambda: f"{ended} ended:\n{self.logs()}")
            self.world.reap()
            return self.command("sinfo", "-h", "-o", "%T", check=False).split() == ["idle"]
        wait_until(idle, SOON_S, lambda: f"the nodes are not idle:\n{self.logs()}")

    def _add_address(self):
        """Slurm's daemons listen on no machine that has only the loopback device (AI_ADDRCONFIG)."""
        for words in ("link add slurm0 type veth peer name slurm1", "addr add 192.0.2.1/24 dev slurm0",
                      "link set slurm0 up", "link set slurm1 up"):
            self.command("ip", *words.split())

    def _bind(self, path, text):
        """Replaces a file of the system in this test's mount namespace."""
        own = self.world.folder / path.name
        own.write_bytes(text)
        isolate.mount(str(own), str(path), flags=isolate.MS_BIND)

    def _add_user(self):
        for path, line in (("/etc/passwd", f"alice:x:{ALICE}:{ALICE}::{self.world.folder}:/bin/sh\n"),
                           ("/etc/group", f"alice:x:{ALICE}:\n")):
            path = pathlib.Path(path)
            self._bind(path, path.read_bytes() + line.encode())

    def _add_driver(self):
        """The plugin removes LD_LIBRARY_PATH from programs of Stasis, so the software driver must be installed like a
        real one."""
        conf, cache = self.world.folder / "driver.conf", self.world.folder / "driver.cache"
        conf.write_text(f"{self.world.build}/lib/softgpu\ninclude /etc/ld.so.conf\n")
        subprocess.run(["/sbin/ldconfig", "-X", "-f", conf, "-C", cache], check=True)
        self._bind(pathlib.Path("/etc/ld.so.cache"), cache.read_bytes())

    def _start_gpus(self):
        """Starts the broker of the software GPUs outside of all jobs. Otherwise the first program starts it, in the
        control group of its job, and Slurm kills it with that job."""
        hold = "import ctypes, sys; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True); sys.stdin.read()"
        self._gpus = subprocess.Popen(self.words_of(ALICE) + [sys.executable, "-c", hold], env=self.env, cwd="/",
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.world.own(self._gpus.pid)
        demand(self._gpus.stdout.readline() == b"0\n", "there is no software GPU")

    def own_processes(self):
        """Returns the processes of alice that belong to no job."""
        return [self._gpus.pid, *self.world.named("softgpu-broker")]

    def _configure_slurm(self):
        (self.folder / "slurm.conf").write_text(CONFIG.format(
            folder=self.folder, host=socket.gethostname(), prefix=self.prefix, nodes=f"{self.prefix}[1-2]",
            kill_wait=self.kill_wait, more="\n".join(self.more)))

    def _configure(self):
        write = lambda name, text: (self.folder / name).write_text(text)  # noqa: E731
        self._configure_slurm()
        integration = pathlib.Path(__file__).resolve().parents[2] / "integrations" / "slurm"
        write("cli_filter.lua", (integration / "cli_filter.lua").read_text())
        write("cgroup.conf", "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n")
        for number in (0, 1):
            # Slurm demands a device, which nobody opens, and takes the GPU's index from its name.
            os.mknod(self.folder / "dev" / f"nvidia{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        # A job gets the index of its GPU in Gres= of slurm.conf, so the second node's own GPU is the second one there.
        write("gres.conf", "".join(
            f"NodeName={node} Name=gpu Type={'own' if number == owner else 'other'} File={self.folder}/dev/nvidia{number}\n"
            for owner, node in enumerate(self.nodes) for number in (0, 1)))
        # The node would be drained if it failed.
        write("epilog.sh", f"""\
#!/bin/sh
[ ! -e {self.folder}/no-epilog ] || exit 0
{self.world.bin}/stasis -q slurm epilog >>{self.folder}/epilog.log 2>&1 || echo "job $SLURM_JOB_ID: $?" >>{self.folder}/epilog.log
""")
        (self.folder / "epilog.sh").chmod(0o755)
        self.set_plugin(self.plugin)

    def set_epilog(self, runs):
        """Lets the Epilog do its work, or do nothing."""
        hold = self.folder / "no-epilog"
        hold.unlink(missing_ok=True) if runs else hold.touch()

    def epilog_log(self):
        return processes.text_of(self.folder / "epilog.log")

    def set_plugin(self, words):
        """Sets the line of plugstack.conf, which every step and command reads."""
        (self.folder / "plugstack.conf").write_text(f"optional {words}\n")

    def _start_munge(self):
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        at = self.folder / "munge"
        self._daemon("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={at}/socket",
                     f"--pid-file={at}/pid", f"--seed-file={at}/seed", f"--log-file={at}/log")
        wait_until((at / "socket").exists, SOON_S, lambda: f"munged does not start:\n{self.logs()}")

    def restart(self, name):
        """Ends a daemon and starts it again."""
        daemon = self._daemons.pop(name)
        daemon.terminate()
        daemon.wait(SOON_S)
        self._start(name)

    def use_private_folders(self):
        """From now on each job has /tmp and /dev/shm for itself."""
        self.more += ["JobContainerType=job_container/tmpfs", "PrologFlags=Contain"]
        self._configure_slurm()
        (self.folder / "job_container.conf").write_text("".join(
            f"NodeName={node} AutoBasePath=true BasePath={self.folder}/private/{node}\n" for node in self.nodes))
        # Linux 6.18 numbers mount namespaces per CPU, and refuses to mount one (as Slurm does) in a namespace with a
        # higher number. So slurmd gets a namespace with a low number.
        cpu = oldest_cpu()
        everyone = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        self.prefix_of_slurmd = ["taskset", "-c", str(cpu), "unshare", "--mount", "taskset", "-c", everyone]
        for name in ("slurmctld", *self.nodes):
            self.restart(name)
        self.await_idle()

    def mounts_of(self, node):
        """Returns where slurmd of a node has mounted something."""
        return [line.split()[1] for line in pathlib.Path(f"/proc/{self._daemons[node].pid}/mounts").read_text().splitlines()]

    def _start(self, name):
        if name == "slurmctld":
            self._daemon(name, "slurmctld", "-D")
        else:
            self._daemon(name, *self.prefix_of_slurmd, "slurmd", "-D", "-N", name)

    def set_kill_wait(self, seconds):
        self.kill_wait = seconds
        self._configure_slurm()
        self.command("scontrol", "reconfigure")

    def _daemon(self, name, *words):
        with open(self.folder / f"{name}.out", "wb") as out:
            self._daemons[name] = subprocess.Popen(
                words, env={"PATH": self.env["PATH"], "LANG": "C.UTF-8", "SLURM_CONF": self.env["SLURM_CONF"]},
                cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.world.own(self._daemons[name].pid)

    def stop(self):
        for name in (*self.nodes, "slurmctld", "munged"):
            daemon = self._daemons.pop(name, None)
            if daemon:
                daemon.terminate()
                daemon.wait(SOON_S)
        if self._gpus:
            self._gpus.communicate()
        self._end_jobs()
        self._remove_control_groups()
        for path in ("/etc/passwd", "/etc/group", "/etc/ld.so.cache"):
            isolate.unmount(path)

    def _end_jobs(self):
        """Ends what a failed test has left."""
        def left():
            self.world.reap()
            return [pid for pid in processes.all_pids() if pid != os.getpid()]
        for pid in left():
            processes.end(pid)
        wait_until(lambda: not left(), SOON_S, lambda: "left: " + ", ".join(map(processes.describe, left())))

    def control_groups(self):
        """Returns the control groups of the nodes, those below before those above."""
        found = []
        for top in pathlib.Path("/sys/fs/cgroup").glob(f"*/slurm_{self.prefix}*"):
            found += [pathlib.Path(at) for at, _, _ in os.walk(top, topdown=False)]
        return found

    def _remove_control_groups(self):
        for group in self.control_groups():
            group.rmdir()

    # Commands.

    @staticmethod
    def words_of(user):
        """Returns the words before a command that run it as this user."""
        return [] if user == 0 else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]

    def command(self, *words, user=0, check=True, errors=False):
        """Runs a command of Slurm, and returns its output, also on stderr with `errors`. `user`: 0 or ALICE."""
        done = subprocess.run([*self.words_of(user), *map(str, words)], env=self.env, cwd=self.world.folder,
                              text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
        demand(done.returncode == 0 or not check,
               lambda: f"{words}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout + (done.stderr if errors else "")

    def logs(self):
        parts = []
        for path in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
            parts.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:]))
        return "\n".join(parts)

    def submit(self, script, *options):
        return Job(self, script, options)


class Job:
    """A batch job of alice."""

    def __init__(self, cluster, script, options):
        self.cluster = cluster
        folder = cluster.world.folder
        path = folder / f"job-{len(list(folder.glob('job-*.sh')))}.sh"
        path.write_text("#!/bin/bash\n" + script)
        path.chmod(0o755)
        self.id = cluster.command("sbatch", "--parsable", "--open-mode=append", "--requeue", "--mem=300", "-n1",
                                  f"--output={folder}/%j.out", *options, path, user=ALICE).strip()
        self._watch(self.id)

    def _watch(self, job_id):
        self.id = job_id
        self.path = self.cluster.world.folder / f"{job_id}.out"
        self.answers = {}  # the last one of each counter
        self._last_state, self._ended_s = "PENDING", 0

    def of_array(self, task):
        """Returns the job of this task, if this is an array, once it has started."""
        def started():
            shown = self.cluster.command("scontrol", "show", "job", f"{self.id}_{task}")
            return re.search(r"\bJobId=(\d+)", shown) if "JobState=RUNNING" in shown else None
        other = copy.copy(self)
        other._watch(wait_until(started, SOON_S, f"task {task} of array {self.id} does not start")[1])
        return other

    def field(self, name):
        shown = self.cluster.command("scontrol", "show", "job", self.id, check=False)
        found = re.search(rf"\b{name}=(\S+)", shown)
        return found[1] if found else ""

    def state(self):
        self.cluster.world.reap()  # a killed program's pid is taken until then
        state = self.field("JobState")
        if state == "PENDING" and self._last_state != "PENDING":
            self._ended_s = int(time.time())
        self._last_state = state
        return state

    def output(self):
        return processes.text_of(self.path)

    def await_state(self, *states):
        def look():
            state = self.state()
            if state in states:
                return state
            demand(state not in ENDED, lambda: f"job {self.id} is {state}, not {states}:\n{self.tell()}")
            return None
        return wait_until(look, SOON_S, lambda: f"job {self.id} is {self.state()}, not {states}:\n{self.tell()}")

    def await_output(self, pattern):
        expression = re.compile(pattern, re.M)

        def look():
            ended = self.state() in ENDED  # must precede the read of the last output
            found = expression.search(self.output())
            demand(found or not ended, lambda: f"job {self.id} ended and did not print {pattern}:\n{self.tell()}")
            return found
        return wait_until(look, SOON_S, lambda: f"job {self.id} did not print {pattern}:\n{self.tell()}")

    def await_end(self, state="COMPLETED"):
        wait_until(lambda: self.state() in ENDED, SOON_S, lambda: f"job {self.id} is {self.state()}:\n{self.tell()}")
        demand(self.state() == state, lambda: f"job {self.id} is {self.state()}, not {state}:\n{self.tell()}")

    def tell(self):
        logs = "".join(processes.text_of(path) for path in self.cluster.world.state.glob(f"slurm/slurm-{self.id}.*log"))
        return f"The output of job {self.id}:\n{self.output()[-3000:]}\nIts launchers' logs:\n{logs[-3000:]}"

    # Its counters, by their number.

    def send(self, text, counter=0):
        """Returns the answer to a packet. While the counter is not there, packets to it are refused."""
        self.await_output(r"(^[@^]*PORT \d+\r?$(.|\n)*){%d}" % (counter + 1))
        port = re.findall(r"^[@^]*PORT (\d+)\r?$", self.output(), re.M)[counter]

        def ask():
            done = subprocess.run([self.cluster.world.workloads / "udp_send", "--timeout", "60000", port, text],
                                  text=True, capture_output=True, check=False)
            if done.returncode == 0:
                return done.stdout.strip()
            state = self.state()
            demand("refused" in done.stderr and state not in ENDED,
                   lambda: f"no answer to {text}, job {self.id} is {state}: {done.stderr}\n{self.tell()}")
            return None
        return wait_until(ask, SOON_S, lambda: f"no answer to {text}, job {self.id} is {self.state()}\n{self.tell()}")

    def expect_count(self, counter=0):
        """Checks that the count goes on by one, and that the memory is intact."""
        self.answers[counter] = self.answers.get(counter, 100) + 1
        answer = self.send("next", counter)
        demand(answer == str(self.answers[counter]),
               lambda: f"counter {counter} answers {answer}, not {self.answers[counter]}:\n{self.tell()}")
        answer = self.send("verify", counter)
        demand(answer.startswith("OK "), lambda: f"the memory of counter {counter} is {answer}")

    def requeue(self, node=None):
        """Requeues the job, and lets it start at once, on this node."""
        self.cluster.command("scontrol", "requeue", self.id)
        self.await_state("PENDING")
        self.start_now(node)

    def start_now(self, node=None):
        change = [f"ReqNodeList={node}"] if node else []
        # A job that starts in the second in which it ended fails: "Job credential revoked".
        wait_until(lambda: int(time.time()) > self._ended_s + 1, SOON_S, "the clock stands still")
        # Refused if the job has started by itself in the meantime.
        self.cluster.command("scontrol", "update", f"JobId={self.id}", "StartTime=now", *change, check=False)
        self.await_state("RUNNING")


def run(build, *tests, **settings):
    """Runs each function with a cluster. Prints how long each took. Returns the exit code of the test."""
    isolate_failures = (Failed, Late, subprocess.SubprocessError)
    cluster = Cluster(build, **settings)
    try:
        cluster.start()
        for test in tests:
            began = time.monotonic()
            test(cluster)
            print(f"{test.__name__}: as it should be, {time.monotonic() - began:.1f} s", flush=True)
    except isolate_failures as error:
        print(f"{error}\n{cluster.logs()}")
        return 1
    finally:
        cluster.stop()
    return 0
