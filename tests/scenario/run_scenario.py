"""run_scenario.py --build DIR FILE: runs one scenario (language.md)."""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import processes  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402
from processes import wait_until  # noqa: E402


class Line:
    """One parsed line: words, the environment before them, the exit code after them."""

    def __init__(self, number, words):
        self.number = number
        self.text = " ".join(words)
        self.env, self.expect, self.reply = {}, 0, None
        words = list(words)
        if words[0] == "env":
            words.pop(0)
            while "=" in words[0]:
                key, value = words.pop(0).split("=", 1)
                self.env[key] = value
        if "->" in words:
            at = words.index("->")
            after, words = words[at + 1:], words[:at]
            if after[0] == "exit":
                self.expect = int(after[1])
            else:
                self.reply = " ".join(after)
        self.verb, self.args = words[0], words[1:]


def read_blocks(path):
    """Parses the file into nested lists: (number, words), or (number, words of repeat/foreach,
    body)."""
    stack = [[]]
    opened = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        words = shlex.split(text, comments=True)
        if not words:
            continue
        if words[0] in ("repeat", "foreach"):
            opened.append((number, words))
            stack.append([])
        elif words[0] == "end":
            body = stack.pop()
            stack[-1].append((*opened.pop(), body))
        else:
            stack[-1].append((number, words))
    demand(not opened, f"{path}: a block without an end")
    return stack[0]


class Scenario:
    def __init__(self, build, keep, daemon):
        self.world = World(build, keep=keep, daemon=daemon)
        self.programs = {}
        self.variables = {"DIR": str(self.world.folder), "STATE": str(self.world.state),
                          "IMAGES": str(self.world.images),
                          "AGENTS": str(self.world.state / "data" / "agents"),
                          "WORKLOADS": str(self.world.workloads),
                          "PROGRAMS": str(pathlib.Path(__file__).resolve().parent / "programs")}
        self.beside = {}
        self.stand_ins = {}
        self.mounted = []
        self.mover = self.helper = None  # the last ones seen
        self.at = None
        self.round = ""

    # Execution.

    def run(self, blocks):
        for number, words, *body in blocks:
            if not body:
                self.step(number, [self.fill_in(word) for word in words])
            elif words[0] == "repeat":
                for count in range(int(self.chosen(words[1:])[-1])):
                    self.round = f" (round {count + 1})"
                    self.run(body[0])
            else:
                name, values = words[1], [self.fill_in(word) for word in self.chosen(words[3:])]
                for value in " ".join(values).split():
                    self.variables[name] = value
                    self.round = f" ({name} = {value})"
                    self.run(body[0])
        self.round = ""

    def chosen(self, words):
        """Returns the words before a `/`, with --all also those after it."""
        at = words.index("/") if "/" in words else len(words)
        return words[:at] + (words[at + 1:] if self.world.every else [])

    def fill_in(self, word):
        def value(match):
            name, field = match.group(1), match.group(2)
            if field is None:
                return self.variables[name]
            program = self.programs[name]
            return {"pid": lambda: str(program.pid), "port": lambda: str(program.port()),
                    "out": lambda: str(program.files[0])}[field]()
        return re.sub(r"\$(\w+)(?:\.(pid|port|out)\b)?", value, word)

    def step(self, number, words):
        line = self.at = Line(number, words)
        method = getattr(self, "do_" + line.verb.replace("-", "_"), None)
        demand(method is not None, f"there is no verb {line.verb}")
        began = time.monotonic()
        method(line)
        if VERBOSE:
            print(f"{time.monotonic() - began:6.2f} s  {number:3} {line.text}{self.round}", flush=True)

    # The machine.

    def do_gpu(self, line):
        settings = dict(word.split("=") for word in line.args)
        self.world.set_gpu(settings.get("devices", "1"), settings.get("memory", "1G"))

    def do_expect_gpu_free(self, _):
        def used():
            return [(g["index"], g["total_bytes"] - g["free_bytes"]) for g in self.world.gpus()
                    if g["free_bytes"] != g["total_bytes"]]
        wait_until(lambda: not used(), 60, lambda: f"GPU memory is in use: {used()}")

    def do_small_store(self, line):
        folder = line.args[0]
        os.makedirs(folder)
        isolate.mount("tmpfs", folder, "tmpfs", 0, f"size={line.args[1]},mode=0700")
        self.mounted.append(folder)
        self.world._mounts.append(folder)

    def do_fill(self, line):
        space = os.statvfs(line.args[0])
        size = space.f_bavail * space.f_frsize - int(line.args[1])
        fd = os.open(line.args[0] + "/filler", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(fd, 0, size)
        os.close(fd)

    # Resident helpers.

    def do_helpers_stay(self, line):
        self.world.env["STASIS_HELPER_IDLE_S"] = line.args[0]

    def expect_one(self, running, last, expected):
        """Waits until the one running helper is the `same` as the last one or `another`, or there is `none`. Returns
        its pid or None."""
        found = []

        def holds():
            found[:] = running()
            if expected == "none":
                return not found
            return len(found) == 1 and (expected == "same") == (found[0] == last)
        wait_until(holds, 60, lambda: f"they are {found}, the last was {last}")
        return next(iter(found), None)

    def stop(self, pid):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (processes.stat(pid) or "??")[1] == "T", 60, "it is not stopped")

    def do_expect_mover(self, line):
        self.mover = self.expect_one(self.world.movers, self.mover, line.args[0])

    def do_kill_mover(self, _):
        os.kill(self.mover, signal.SIGKILL)
        wait_until(lambda: self.world.reap() or not self.world.movers(), 60, "it does not end")

    def do_stop_mover(self, _):
        self.stop(self.mover)

    def do_expect_helper(self, line):
        self.helper = self.expect_one(self.world.device_helpers, self.helper, line.args[0])

    def do_expect_helper_idle(self, _):
        """Checks that the helper has no lock of a command and no GPU memory, and is not listed as a user."""
        files = [os.readlink(f"/proc/{self.helper}/fd/{fd}") for fd in os.listdir(f"/proc/{self.helper}/fd")]
        wrong = [file for file in files if "/journal/" in file or re.match(r"/softgpu/\d+/", file)]
        demand(not wrong, f"the idle device helper holds {wrong}")
        listed = self.world.stasis("gpu", "ls", "--json").json()
        demand(self.helper not in [user["pid"] for user in listed["processes"]], f"{listed}")

    def do_kill_helper(self, _):
        os.kill(self.helper, signal.SIGKILL)
        wait_until(lambda: self.world.reap() or not self.world.device_helpers(), 60, "it does not end")

    def do_stop_helper(self, _):
        self.stop(self.helper)

    def do_helper_fault(self, line):
        self.world.gpu_fault(line.args[0], self.helper)

    def do_mover_fault(self, line):
        self.world.gpu_fault(line.args[0], self.mover)

    # Programs.

    def program(self, line, at=0):
        demand(line.args[at] in self.programs, f"no program {line.args[at]}")
        return self.programs[line.args[at]]

    def do_start(self, line):
        options = [word for word in line.args if word == "--no-agent"]
        name, workload, *args = line.args[len(options):]
        self.programs[name] = Program(self.world, name, workload, args).run(*options, env=line.env)

    def do_spawn(self, line):
        name, workload, *args = line.args
        self.programs[name] = Program(self.world, name, workload, args).spawn(env=line.env)

    def do_adopt(self, line):
        """A job that another line started with `stasis run`."""
        name, workload = line.args
        program = self.programs[name] = Program(self.world, name, workload, [])
        program.adopt()

    def do_manage(self, line):
        """Makes a program started without a job a job of that name."""
        self.program(line).manage(*line.args[1:], expect=line.expect, env=line.env)

    def do_expect_output(self, line):
        self.program(line).await_output(line.args[1])

    def do_runs(self, line):
        self.program(line).expect_running()

    def do_silent(self, line):
        """Waits until a program with a locked GPU blocks in its next driver call: it sleeps, and
        its output does not grow."""
        program = self.program(line)
        seen, since = len(program.output()), time.monotonic()

        def quiet():
            nonlocal seen, since
            now = len(program.output())
            if now != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since > 0.15
        wait_until(quiet, 20, lambda: f"{program.name} goes on:\n{program.tail()}")

    def do_send(self, line):
        answer = self.program(line).send(line.args[1])
        demand(re.fullmatch(line.reply, answer), f"the answer is '{answer}', not '{line.reply}'")
        if answer.isdigit():
            self.program(line).packets = int(answer)

    def do_finish(self, line):
        self.program(line).finish()

    def do_kill(self, line):
        number = signal.Signals[line.args[1]] if len(line.args) > 1 else signal.SIGKILL
        self.program(line).kill(number)

    def do_gone(self, line):
        self.program(line).await_gone()

    def do_expect_state(self, line):
        program, wanted = self.program(line), line.args[1]
        wait_until(lambda: program.state() == wanted, 60,
                   lambda: f"{program.name} is {program.state()}, not {wanted}")

    def do_take_pid(self, line):
        program = self.program(line)
        pid = processes.spawn_with_pid(program.pid)
        self.world.own(pid)
        self.stand_ins[program.name] = pid

    def do_release_pid(self, line):
        pid = self.stand_ins.pop(line.args[0])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.world.disown(pid)

    # Stasis.

    def operate(self, line):
        program = self.program(line)
        self.world.stasis(line.verb, program.target, *line.args[1:], expect=line.expect, env=line.env)

    do_suspend = do_resume = operate

    def do_dump(self, line):
        options = line.args[1:]
        name = None
        if "--name" in options:
            at = options.index("--name")
            name = options[at + 1]
            del options[at:at + 2]
        self.program(line).dump(*options, name=name, expect=line.expect, env=line.env)

    def do_restore(self, line):
        options, image = line.args[1:], None
        if options[:1] == ["from"]:
            image, options = options[1], options[2:]
        self.program(line).restore(image, *options, expect=line.expect, env=line.env)

    def do_shell(self, line):
        """Runs a shell line, which can set limits or a session first."""
        self.world.shell(*line.args, expect=line.expect, env=line.env)

    def do_stasis(self, line):
        self.world.stasis(*line.args, expect=line.expect, env=line.env)

    def do_begin(self, line):
        demand(line.args[1] == "stasis", "begin TAG stasis ARG…")
        self.beside[line.args[0]] = self.world.begin(*line.args[2:], env=line.env)

    def do_end_of(self, line):
        command = self.world.last = self.beside.pop(line.args[0]).wait()
        demand(command.code == line.expect, f"expected exit code {line.expect}:\n{command}")

    def do_expect_phase(self, line):
        self.world.await_phase(line.args[0])

    def expect_text(self, line, text):
        # A pattern is one string, however it was quoted.
        pattern = " ".join(line.args)
        demand(re.search(pattern, text, re.M), f"no match for '{pattern}':\n{self.world.last}")

    def do_expect_stdout(self, line):
        self.expect_text(line, self.world.last.out)

    def do_expect_stderr(self, line):
        self.expect_text(line, self.world.last.err)

    # Files.

    def do_expect_path(self, line):
        demand(os.path.lexists(line.args[0]), f"{line.args[0]} is not there")

    def do_expect_no_path(self, line):
        demand(not os.path.lexists(line.args[0]), f"{line.args[0]} is there")

    def do_make_folder(self, line):
        os.mkdir(line.args[0], 0o700)

    def do_chmod(self, line):
        os.chmod(line.args[0], int(line.args[1], 8))

    def do_rename(self, line):
        os.rename(*line.args)

    def do_copy(self, line):
        shutil.copytree(*line.args) if os.path.isdir(line.args[0]) else shutil.copy2(*line.args)

    def do_remove(self, line):
        path = line.args[0]
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def do_append(self, line):
        with open(line.args[0], "a") as file:
            file.write(line.args[1] + "\n")

    def do_flip(self, line):
        with open(line.args[0], "r+b") as file:
            at = int(line.args[1])
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))

    def do_program_fault(self, line):
        program, rules = self.program(line), "\n".join(line.args[1:])
        self.world.gpu_fault(rules, program.pid)

    # End.

    def close(self):
        for folder in reversed(self.mounted):
            isolate.unmount(folder)
        self.world.expect_clean()
        self.world.stasis("recover")
        self.world.expect_clean()
        self.world.close()


VERBOSE = False


def main():
    global VERBOSE
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--keep", action="store_true", help="keep the scenario's folder (in its own /tmp)")
    parser.add_argument("--all", action="store_true", help="also use the words after a `/` of foreach and repeat")
    parser.add_argument("--daemon", action="store_true", help="run commands through a daemon")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("file")
    options = parser.parse_args()
    VERBOSE = options.verbose
    path = pathlib.Path(options.file).resolve()
    isolate.enter(isolate_keep(options.build))

    scenario = Scenario(options.build, options.keep, options.daemon)
    scenario.world.every = options.all
    try:
        scenario.run(read_blocks(path))
        scenario.close()
    except Exception as error:  # noqa: BLE001 - for any error, the line and the last commands are printed
        where = f"{path.name}:{scenario.at.number}: {scenario.at.text}{scenario.round}" if scenario.at else path.name
        print(f"{where}\n{error}" if isinstance(error, (Failed, processes.Late)) else
              f"{where}\n{traceback.format_exc()}")
        print(f"\nThe last commands:\n{scenario.world.transcript()}")
        for program in scenario.programs.values():
            print(f"\nThe end of {program.name}'s output:\n{program.tail()}")
        sys.exit(1)


if __name__ == "__main__":
    main()
