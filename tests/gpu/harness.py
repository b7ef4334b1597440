"""Runs steps in order, each with a time limit; a failed step does not prevent the others."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import time
import traceback


class StepFailed(Exception):
    pass


class StepSkipped(Exception):
    pass


def demand(condition, what):
    if not condition:
        raise StepFailed(what)


def tail(text, limit=2000):
    return text if len(text) <= limit else "…" + text[-limit:]


class Report:
    """The results of steps and all measurements, in memory and, after every step, on disk."""

    LOG_LIMIT = 256 * 1024
    NOTE_LINES = 100  # of a step, in the summary

    def __init__(self, out_dir, budget_s, name):
        self.out = pathlib.Path(out_dir)
        self.name = name
        self.logs = self.out / "logs"
        # Programs append to their logs, so remove those of an earlier run.
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)
        self.deadline = time.monotonic() + budget_s
        self.rows = []
        self.times = []
        self.accounts = []
        self.numbers = []
        self.facts = {}
        self.step_name = ""

    def left_s(self):
        return self.deadline - time.monotonic()

    def step(self, name, limit_s, function):
        self.step_name = name
        began = time.monotonic()
        limit = min(limit_s, self.left_s())
        result, note = "PASS", ""
        # The alarm is the last resort: each command has its own time limit.
        signal.signal(signal.SIGALRM, self._ring)
        try:
            demand(limit > 5, "no time was left for it")
            signal.setitimer(signal.ITIMER_REAL, limit)
            note = function() or ""
        except StepFailed as failure:
            result, note = "FAIL", str(failure)
        except StepSkipped as reason:
            result, note = "SKIP", str(reason)
        except Exception:  # noqa: BLE001 - the other steps run all the same
            result, note = "FAIL", traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.monotonic() - began
        self.rows.append({"step": name, "result": result, "seconds": seconds, "note": note})
        print(f"{result}  {seconds:7.2f} s  {name}  {first_line(note)}", flush=True)
        self.write()

    @staticmethod
    def _ring(_signal, _frame):
        raise StepFailed("the step passed its time limit")

    def time(self, subject, what, seconds, account=None):
        self.times.append({"subject": subject, "what": what, "seconds": seconds})
        if account is not None:
            self.accounts.append({"subject": subject, "what": what, "account": account})

    def number(self, what, value, unit, bar=None):
        """Records a measurement. `bar`: ("<=" or ">=", limit). Returns whether the bar is met."""
        good = bar is None or (value <= bar[1] if bar[0] == "<=" else value >= bar[1])
        self.numbers.append({"step": self.step_name, "what": what, "value": value, "unit": unit,
                             "bar": list(bar) if bar else None, "good": good})
        return good

    def numbers_of(self, step):
        return [n for n in self.numbers if n["step"] == step]

    def write(self):
        document = {
            "facts": self.facts,
            "steps": self.rows,
            "numbers": self.numbers,
            "times": self.times,
            "accounts": self.accounts,
        }
        (self.out / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.out / "summary.txt").write_text(self.summary())

    def summary(self):
        lines = [f"{key}: {value}" for key, value in self.facts.items()] + [""]
        for row in self.rows:
            lines.append(f"{row['result']}  {row['seconds']:7.2f} s  {row['step']}")
            if row["note"]:
                lines += ["        " + line for line in row["note"].splitlines()[:self.NOTE_LINES]]
            lines += ["        " + number_line(n) for n in self.numbers_of(row["step"])]
        if self.times:
            lines += ["", "seconds  subject: what"]
            lines += [f"{t['seconds']:7.3f}  {t['subject']}: {t['what']}" for t in self.times]
        counts = {}
        for row in self.rows:
            counts[row["result"]] = counts.get(row["result"], 0) + 1
        lines += ["", ", ".join(f"{n} {result}" for result, n in sorted(counts.items()))]
        return "\n".join(lines) + "\n"

    def finish(self):
        """Packs the logs and prints the summary. Returns the exit code."""
        for path in self.logs.iterdir():
            if path.is_file() and path.stat().st_size > self.LOG_LIMIT:
                data = path.read_bytes()
                half = self.LOG_LIMIT // 2
                path.write_bytes(data[:half] + b"\n[...]\n" + data[-half:])
        with tarfile.open(self.out / "logs.tar.gz", "w:gz") as archive:
            archive.add(self.logs, "logs")
        self.write()
        print("\n" + self.summary(), flush=True)
        return 1 if any(row["result"] == "FAIL" for row in self.rows) else 0


def first_line(text):
    return text.strip().splitlines()[-1] if text.strip() else ""


def number_line(number):
    bar = f"  (bar: {number['bar'][0]} {number['bar'][1]:g})" if number["bar"] else ""
    return (f"{'' if number['good'] else 'MISSED  '}{number['what']} {number['value']:.4g} "
            f"{number['unit']}{bar}")


class Done:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            return None


def run(command, timeout_s, log=None, env=None):
    """Runs a command, or kills its process group at the time limit. Never raises because of the
    command."""
    command = [str(word) for word in command]
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=env, start_new_session=True,
                               errors="replace", text=True)
    try:
        out, err = process.communicate(timeout=timeout_s)
        code = process.returncode
    except BaseException as stopped:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if not isinstance(stopped, subprocess.TimeoutExpired):
            raise
        code, err = 124, err + f"\n[killed after {timeout_s} s]"
    done = Done(code, out, err, time.monotonic() - began)
    if log is not None:
        with open(log, "a") as file:
            file.write(f"$ {' '.join(command)}\n{done.out}{done.err}\n"
                       f"[exit {done.code}, {done.seconds:.3f} s]\n")
    return done


def is_alive(pid):
    """Returns whether the process runs; a zombie does not."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_until(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        demand(time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s")
        time.sleep(0.01)


class Output:
    """The output of a program that follows the workloads' protocol, read from its log."""

    ROUND = re.compile(r"^ROUND (\d+) (\S+)$", re.M)

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def text(self):
        return self.path.read_text(errors="replace") if self.path.exists() else ""

    def rounds(self):
        return self.ROUND.findall(self.text())

    def count(self):
        return len(self.rounds())

    def failure(self):
        for line in self.text().splitlines():
            if line.startswith("FAILED") or "Traceback" in line:
                return line
        return None

    def has(self, line):
        return line in self.text().splitlines()
