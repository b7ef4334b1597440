"""verdict_test.py VERDICT_PY: tests the verdict on simulated test runs."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

VERDICT = sys.argv.pop(1)

GTEST_OUTPUT = "[==========] Running 2 tests from 1 test suite.\n[ RUN      ] Disk.Full\n"


def run(tests: dict[str, tuple[str, str]], reports: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Returns the verdict on tests (name: ctest's status, output) and on reports of test programs
    (name: XML of its cases)."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        entries = "".join(
            f'<testcase name="{test}" time="1" status="{status}"><system-out>{output}</system-out></testcase>'
            for test, (status, output) in tests.items())
        (folder / "junit").write_text(f"<testsuite>{entries}</testsuite>")
        for test, cases in reports.items():
            (folder / f"{test}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return subprocess.run([sys.executable, "-B", VERDICT, *options, "--cases", name, folder / "junit"],
                              capture_output=True, text=True, check=False)


def case(name: str, inner: str = "") -> str:
    return f'<testcase name="{name}" status="run" result="completed" classname="Disk">{inner}</testcase>'


class Verdict(unittest.TestCase):
    def test_passes_when_every_case_passed(self) -> None:
        done = run({"unit.store": ("run", GTEST_OUTPUT), "demo": ("run", "")}, {"unit.store": case("Full")})
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_fails_on_a_skipped_test(self) -> None:
        done = run({"demo": ("notrun", "")}, {})
        self.assertEqual((done.returncode, done.stderr), (1, "skipped, but must run here: demo\n"))

    def test_fails_on_a_skipped_case_of_a_program_that_passed(self) -> None:
        done = run({"unit.store": ("run", GTEST_OUTPUT)},
                   {"unit.store": case("Empty") + case("Full", '<skipped message="no tmpfs"/>')})
        self.assertEqual((done.returncode, done.stderr), (1, "skipped, but must run here: unit.store.Disk.Full\n"))

    def test_names_the_case_that_failed(self) -> None:
        done = run({"unit.store": ("fail", GTEST_OUTPUT)},
                   {"unit.store": case("Empty") + case("Full", '<failure message="3 is not 4"/>')})
        self.assertIn("ci: failed: unit.store.Disk.Full: 3 is not 4\n", done.stdout)

    def test_names_the_case_that_ended_the_program(self) -> None:
        done = run({"unit.store": ("fail", GTEST_OUTPUT)}, {})
        self.assertIn("ci: failed: unit.store.Disk.Full: the test program ended in this case\n", done.stdout)

    def test_fails_when_a_program_that_passed_left_no_report(self) -> None:
        done = run({"unit.store": ("run", GTEST_OUTPUT)}, {})
        self.assertEqual(done.returncode, 1)

    def test_fails_when_no_test_ran(self) -> None:
        self.assertEqual(run({}, {}).returncode, 1)

    def test_few_failures_may_run_again(self) -> None:
        failed = {f"test{n}": ("fail", "") for n in range(3)}
        self.assertEqual(run(failed, {}, "--few").returncode, 1)
        failed.popitem()
        self.assertEqual(run(failed, {}, "--few").returncode, 0)


if __name__ == "__main__":
    unittest.main()
