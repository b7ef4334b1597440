"""Usage errors: exit code 2, or 3 for an unknown name, with the wrong word in the message."""

import sys

from bench import Bench, Program, main

LONG = "a" * 300
VERBS = ["run", "ps", "inspect", "checkpoints", "logs", "wait", "kill", "delete", "suspend", "resume", "dump",
         "restore", "image", "arena", "gpu", "check", "recover", "bench", "config", "completion",
         "version"]

# Arguments, exit code, words in the message.
ROWS = [
    ([], 2),
    (["no-such-verb"], 2, "no-such-verb"),
    (["--no-such-flag"], 2, "--no-such-flag"),
    *[([verb, "--no-such-flag"], 2) for verb in VERBS],
    *[([verb], 2, "TARGET") for verb in ("suspend", "resume", "dump")],
    (["restore"], 2, "TARGET"),
    *[([verb], 2, "JOB") for verb in ("inspect", "checkpoints", "logs", "wait", "kill", "delete")],
    (["image"], 2), (["image", "no-such-verb"], 2), (["image", "inspect"], 2), (["image", "delete"], 2),
    (["config"], 2), (["config", "show", "extra"], 2, "extra"),
    (["completion"], 2), (["completion", "tcsh"], 2, "tcsh"), (["help", "no-such-verb"], 2, "no-such-verb"),
    (["gpu"], 2), (["gpu", "no-such-verb"], 2), (["gpu", "state"], 2),
    *[(["gpu", verb, "job"], 2, "job") for verb in ("state", "lock", "unlock", "toggle")],
    (["gpu", "state", "0"], 2), (["gpu", "state", "12x"], 2), (["gpu", "state", "1.5"], 2),
    (["gpu", "state", "99999999999999999999"], 2),
    (["arena"], 2), (["arena", "no-such-verb"], 2), (["arena", "ls", "extra"], 2, "extra"),
    (["arena", "free", "extra"], 2, "extra"), (["arena", "reserve"], 2, "SIZE"),
    (["arena", "reserve", "1M", "1M"], 2, "1M"), (["arena", "ls", "--no-such-flag"], 2),
    *[(["arena", "reserve", size], 2, "is not a size")
      for size in ("0", "0G", "G", "1e3", "0x10", "1 G", "1,5G", "1PiB", "1025TiB", "9" * 40, "nan", "1Gi", "32gigs")],
    *[(["arena", "reserve", size], 2) for size in ("", "-1", "-1G", "--")],
    (["arena", "reserve", "1024TiB"], 1, "1048576"),
    (["run"], 2, "program"), (["run", "--"], 2, "program"),
    *[(["run", "--job", name, "--", "/bin/true"], 2, "name")
      for name in ("../x", "Upper", "1st", "a/b", ".hidden", "with space", "new\nline", "-dash", LONG,
                   "ümlaut", "a" * 65)],
    (["run", "--job", "", "--", "/bin/true"], 2),
    (["run", "--attach", "--", "/no/such/program"], 3, "/no/such/program"),
    (["run", "--", ""], (2, 3)),
    (["run", "--", "/etc/passwd"], 4, "/etc/passwd"),
    *[([verb, "no-such-job"], 3, "no-such-job")
      for verb in ("suspend", "resume", "dump", "inspect", "checkpoints", "logs", "wait", "kill", "delete", "check",
                   "restore")],
    *[([verb, name], (2, 3)) for verb in ("suspend", "dump", "check", "logs", "wait", "delete")
      for name in ("../x", "", LONG, "a/../b", "0x12", "1e3", "0", "-1", "99999999999999999999", "4 5")],
    *[(["image", verb, "no-such-image"], 3, "no-such-image") for verb in ("inspect", "verify", "delete")],
    *[(["image", verb, "/no/such/place"], 3, "/no/such/place") for verb in ("inspect", "verify", "delete")],
    *[(["image", "inspect", name], (1, 2, 3)) for name in ("", "../../etc", LONG)],
    (["restore", "/etc"], (1, 3), "/etc"),
    (["image", "delete", "/etc"], (1, 2, 3), "/etc"),
    (["restore", "/etc/passwd"], (1, 2, 3), "/etc/passwd"),
]

# Cases that need a running job.
JOB_ROWS = [
    *[([verb, "job", "--timeout", value], 2) for verb in ("suspend", "dump")
      for value in ("abc", "-1", "0", "", "1e99")],
    *[(["dump", "job", "--name", name], 2, "name")
      for name in ("../x", "a/b", ".hidden", "with space", "new\nline", LONG, "..", "ümlaut")],
    (["dump", "job", "--tcp=maybe"], 2, "tcp"),
    (["dump", "job", "--criu-opt", "nonsense"], 2, "nonsense"),
    (["dump", "job", "--criu-opt", "no_such_option=1"], 2, "no_such_option"),
    (["suspend", "job", "--spill"], 2, "spill"), (["suspend", "job", "--spill", ""], 2),
    (["suspend", "job", "--spill", "relative"], 2, "relative"),
    (["suspend", "job", "--spill", "/no/such/folder"], 3, "/no/such/folder"),
    (["suspend", "job", "--spill", "/etc/passwd"], 2, "/etc/passwd"),
    (["suspend", "job", "--spill", LONG * 20], 2), (["suspend", "job", "--spill", "/" + LONG], (1, 2), LONG[:20]),
    (["resume", "job", "--spill", "/tmp"], 2, "spill"), (["dump", "job", "--spill", "/tmp"], 2, "spill"),
    (["dump", "job", "extra"], 3, "extra"), (["dump", "extra", "job"], 2, "extra job"),
    (["dump", "job", "job", "extra"], 2, "TARGET"), (["dump", "process", "job"], 2, "process job"),
    (["suspend", "job", "extra"], 2, "extra"),
    (["run", "--job", "job", "--", "/bin/true"], (1, 7), "job"),
    (["delete", "job"], 7, "job"),
    (["kill", "job", "--signal", "NOSUCH"], 2, "NOSUCH"),
    (["kill", "job", "--signal", "0"], 2),
    (["kill", "job", "--signal", "999"], 2, "999"),
    (["logs", "-f", "--json", "job"], 2),
]

GRANTS = [("-1", 2), (",", 2), ("0,0", 2), ("7", 3), ("0,x", 3), ("GPU-", 3), (LONG, 3)]
MAPS = [("0", 2), ("0=", 2), ("=0", 2), ("=", 2), (",", 2), ("0=0,", 2), ("0=0,0=0", 2), ("a b=0", (2, 3)),
        ("0=9", (2, 3)), ("9=0", (2, 3)), ("GPU-dead=0", (2, 3)), ("0=GPU-dead", (2, 3)), ("0==0", (2, 3)),
        ("x" * 5000, 2)]


def run(bench: Bench):
    # Creates the directories and installs the agent's library.
    bench.world.stasis("run", "--attach", "--job", "first", "--", "/bin/true")
    bench.world.stasis("delete", "first")
    for row in ROWS:
        bench.case(f"stasis {' '.join(row[0])[:60]!r}", bench.refused, *row)

    program = Program(bench.world, "job", "vector", ["--memory", "1M", "--interval", "20"]).run()
    for row in JOB_ROWS:
        bench.case(f"stasis {' '.join(row[0])[:60]!r}", bench.refused, *row)
    program.expect_running()
    bench.world.stasis("suspend", "job")
    for text, code in MAPS:
        bench.case(f"--gpu-map {text[:40]!r}", bench.refused, ["resume", "job", "--gpu-map", text], code)
    for text, code in GRANTS:
        bench.case(f"--gpus {text[:40]!r}", bench.refused, ["resume", "job", "--gpus", text], code)
    bench.world.stasis("resume", "job")
    program.expect_running()
    program.finish()


if __name__ == "__main__":
    sys.exit(main(run))
