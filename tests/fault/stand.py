"""Shared code of the fault tables: one program that is brought into a state, gets a fault, and is
examined."""

import argparse
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

__all__ = ["Failed", "JOB", "Program", "Stand", "demand", "isolate", "main", "processes", "wait_until"]

# The initial states of a program with a GPU, and the results of `gpu_state` for them.
GPU_STATES = {"running": "running", "apart": "running", "suspended": "checkpointed", "kept": "kept"}
HIP_COUNTER = "hip/counter"  # its context is kept whenever it is suspended
IMAGE = "image"
JOB = "job"


class Stand:
    """The program is a counter with some memory: it answers requests and verifies its memory."""

    def __init__(self, build, keep=False):
        self.world = World(build, keep=keep)
        self.workload = "counter"
        self.memory = "16M"
        self.program = None
        self.store = None   # a directory for images other than the user's
        self.failed = []
        self.cases = 0
        self.seen = set()   # exit codes so far
        self.every = False  # run all cases of the table instead of the most different ones

    def use_hip(self):
        """Makes the program one that uses HIP."""
        self.workload = HIP_COUNTER
        # A dump needs the library of the program's driver.
        self.world.env["STASIS_CUDA_LIBRARY"] = str(self.world.build / "lib" / "softgpu" / "libamdhip64.so.6")

    # States.

    def prepare(self, state):
        """Brings the program into `state`: running, apart (running in a separate pid namespace),
        suspended, kept (suspended with its context kept), or dumped (an image, no process)."""
        if self.program is None or not self.here():
            if state == "dumped" and self.image_exists():
                return
            self.begin_anew()
        if state == "dumped":
            self.drop_image()
            self.resume_if_suspended()
            self.program.dump(name=IMAGE)
            return
        if state == "apart":
            self.prepare_apart()
            return
        self.drop_image()
        if state != "running" and self.program.gpu_state() == GPU_STATES[state]:
            return
        self.resume_if_suspended()
        if state == "running":
            self.program.expect_running()
        else:
            self.world.stasis("suspend", JOB, *(["--keep-context"] if state == "kept" else []))

    def prepare_apart(self):
        self.resume_if_suspended()
        if self.program.pid == self.program.number:
            self.drop_image()
            self.program.dump(name=IMAGE)
            self.program.restore(IMAGE, "--new-pidns")
        self.drop_image()
        self.program.expect_running()

    def new_program(self):
        return Program(self.world, JOB, self.workload, ["--memory", self.memory])

    def begin_anew(self):
        self.end_program()
        self.program = self.new_program().run()
        self.program.expect_running()

    def end_program(self):
        if self.program is None:
            return
        if self.here():
            self.program.kill()
        self.world.stasis("wait", JOB, expect=None)
        self.world.stasis("delete", JOB)
        self.program = None
        self.drop_image()

    def here(self):
        return self.program is not None and processes.is_alive(self.program.pid)

    def resume_if_suspended(self):
        if self.program.gpu_state() != "running":
            self.world.stasis("resume", JOB)

    # Images.

    def image_folder(self):
        return (self.store or self.world.images) / IMAGE

    def image_exists(self):
        return (self.image_folder() / "manifest.pb").exists()

    def drop_image(self):
        if self.image_exists():
            self.world.stasis("image", "delete", self.image_folder())

    # Operations.

    def operands(self, verb):
        if verb == "restore":
            return [self.image_folder(), "--job", JOB]
        if verb == "dump":
            return [JOB, "--name", IMAGE, *(["-d", self.store] if self.store else [])]
        return [JOB]

    def operate(self, verb, *options, env=None):
        self.note_image(verb)
        return self.world.stasis(verb, *self.operands(verb), *options, env=env, expect=None)

    def begin(self, verb, *options, env=None):
        self.note_image(verb)
        return self.world.begin(verb, *self.operands(verb), *options, env=env)

    def has_begun(self, phase):
        return self.world.has_begun(phase)

    def note_image(self, verb):
        """Records the counter's value for the image that is about to be made."""
        if verb == "dump" and not self.image_exists():
            self.program.packets_in[IMAGE] = self.program.packets

    def recover(self):
        done = self.world.stasis("recover")
        demand(JOB in done.out or IMAGE in done.out or "nothing" in done.out,
               f"the message does not say what was recovered:\n{done}")
        return done

    # Checks.

    def settle(self, before, verb, command):
        """After a committed operation the journal keeps the remaining work."""
        if command.code == 6:
            self.recover()
        self.expect_sound(before, verb, command.code)

    def expect_sound(self, before, verb, code):
        """`code`: 1 for a complete roll-back, 6 for a committed operation, None for either."""
        self.seen.add(code)
        self.world.expect_clean()
        self.program.find_pid()
        alive = self.program.pid != 0 and self.here()
        if self.image_exists():
            self.world.stasis("image", "verify", self.image_folder())
            demand(verb != "dump" or code != 1, "it says that all is as it was, and there is an image")
        else:
            demand(before != "dumped", "the image is gone")
            demand(alive, "no program and no image")
        if alive:
            self.expect_alive(before, verb, code)
        else:
            demand(verb == "restore" or code != 1, "it says that all is as it was, and the program is gone")
        if not alive or before == "dumped":
            self.expect_restorable(alive)

    def expect_alive(self, before, verb, code):
        gpu = self.program.gpu_state()
        demand(gpu in GPU_STATES.values(), f"its GPU is {gpu}")
        wanted = GPU_STATES.get(before)
        if code == 1:
            demand(before != "dumped", "it says that nothing was restored, and it runs")
            demand(gpu == wanted, f"its GPU is {gpu}, not {wanted} as before")
        elif verb == "dump":
            demand(gpu == wanted, f"its GPU is {gpu} after a dump that did not end it")
        self.resume_if_suspended()
        self.program.expect_running()

    def expect_restorable(self, alive):
        if alive:
            self.program.kill()
            self.world.stasis("wait", JOB, expect=None)
        self.program.packets = self.program.packets_in.get(IMAGE, self.program.packets)
        self.world.stasis("restore", self.image_folder(), "--job", JOB)
        self.program.find_pid()
        demand(self.program.pid != 0, "it was restored and does not run")
        self.resume_if_suspended()
        self.program.expect_running()

    def expect_orphan(self, before, verb, code):
        """Checks a program whose shim was killed: it continues, and can still be killed and deleted."""
        alive = self.here()
        demand(alive or self.image_exists(), "no program and no image")
        if self.image_exists():
            self.world.stasis("image", "verify", self.image_folder())
        if alive:
            demand(code != 1 or self.program.gpu_state() == GPU_STATES[before], "it is not as it was before")
            self.resume_if_suspended()
            self.program.expect_running()
            self.program.kill()
        else:
            self.expect_restorable(False)
        self.end_program()

    def expect_lost(self, command):
        """Checks that the error reports the lost program, and that nothing else is left."""
        words = ("has ended", "died", "hang", "did not answer", "could not be undone", "lost", "stopped")
        demand(any(word in command.err for word in words), f"the message does not give the state:\n{command}")
        if self.here():
            self.program.kill()
        self.world.stasis("recover", expect=None)
        self.world.expect_clean()
        self.end_program()

    # Cases.

    def case(self, name, function, *args):
        self.cases += 1
        began, commands = time.monotonic(), len(self.world.log)
        try:
            function(self, *args)
            verdict = "ok"
        except Exception as error:  # noqa: BLE001 - the other cases are run all the same
            verdict = "FAILED"
            text = str(error) if isinstance(error, (Failed, processes.Late)) else traceback.format_exc()
            self.failed.append(name)
            print(f"{name}: {text}\nIts commands:")
            for command in self.world.log[commands:]:
                print("  " + str(command).replace("\n", "\n  "))
            self.start_over()
        print(f"{time.monotonic() - began:6.2f} s  {verdict:6}  {name}", flush=True)

    def start_over(self):
        """After a failure: removes everything, so that the next case is meaningful."""
        try:
            self.world.gpu_fault("")
            for pid in processes.all_pids():
                if pid != 1 and processes.is_alive(pid):
                    processes.end(pid)
            self.world.reap_all()
            self.world.forget_state()
        except Exception:  # noqa: BLE001
            traceback.print_exc(file=sys.stdout)
        self.program = None

    def close(self):
        self.end_program()
        self.world.stasis("recover")
        self.world.expect_clean()
        self.world.close()


def main(names, run, stand_of=Stand):
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", help="only cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="all cases of the table, as in the nightly run")
    parser.add_argument("name", choices=list(names))
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    stand = stand_of(options.build)
    stand.every = options.all
    if options.only:
        every = stand.case
        stand.case = lambda name, *rest: every(name, *rest) if options.only in name else None
        stand.seen = {1, 6}
    try:
        run(stand, options.name)
        stand.close()
    except Exception as error:  # noqa: BLE001
        print(str(error) if isinstance(error, (Failed, processes.Late)) else traceback.format_exc())
        print(f"The last commands:\n{stand.world.transcript()}")
        stand.failed.append("the table itself")
    print(f"{stand.cases} cases, {len(stand.failed)} failed" +
          "".join(f"\n  {name}" for name in stand.failed))
    return 1 if stand.failed else 0
