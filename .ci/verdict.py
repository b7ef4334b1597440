"""verdict.py JUNIT_XML: prints the end of each failed test's output, the failed cases, and the slowest tests. Fails if
a test or a case was skipped that is not in may-skip.

verdict.py --few JUNIT_XML: succeeds if so few tests failed that they may run again.
verdict.py --again JUNIT_XML: the same verdict after the second run; names the tests that passed then.
--cases FOLDER: the folder of the test programs' reports (tools/gtest_cases.py).
"""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import gtest_cases  # noqa: E402

RAN = {"run", "fail"}
SHOWN_LINES = 150
SHOWN_SLOWEST = 15
FEW = 2
# The first line of a test program's output.
GTEST_BEGINS = re.compile(r"^\[==========\] Running \d+ tests?", re.MULTILINE)
GTEST_CASE_BEGINS = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)


def cases_of(test: xml.etree.ElementTree.Element, folder: pathlib.Path | None) -> list[gtest_cases.Case]:
    """Returns the cases of a test program; none for any other test."""
    name, output = test.get("name"), test.findtext("system-out") or ""
    if folder is None or not GTEST_BEGINS.search(output):
        return []
    report = folder / f"{name}.xml"
    if report.exists():
        return gtest_cases.read(report)
    # Without a report the program has crashed, in the last case that began.
    began = GTEST_CASE_BEGINS.findall(output) or ["(no case began)"]
    return [gtest_cases.Case(f"{name}.{began[-1]}", "failed", "the test program ended in this case")]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--cases", type=pathlib.Path)
    parser.add_argument("junit")
    options = parser.parse_args()
    tests = list(xml.etree.ElementTree.parse(options.junit).iter("testcase"))
    failed = [test for test in tests if test.get("status") == "fail"]
    if options.few:
        return 0 if 0 < len(failed) <= FEW else 1

    slowest = sorted(tests, key=lambda test: float(test.get("time") or 0), reverse=True)[:SHOWN_SLOWEST]
    print("ci: slowest tests:")
    for test in slowest:
        print(f"ci:   {float(test.get('time') or 0):6.1f} s  {test.get('name')}")
    # ctest prints the output when the test ends, thousands of lines before the end of the log.
    for test in failed:
        output = (test.findtext("system-out") or "").splitlines()
        print(f"ci: the end of the output of {test.get('name')}:", *output[-SHOWN_LINES:], sep="\n")
    cases = [case for test in tests for case in cases_of(test, options.cases)]
    for case in cases:
        if case.outcome == "failed":
            print(f"ci: failed: {case.name}: {case.message}")
    if options.again:
        for test in tests:
            if test.get("status") == "run":
                print(f"ci: {test.get('name')} failed, and passed alone: it has a race")

    lines = pathlib.Path(__file__).with_name("may-skip").read_text().splitlines()
    allowed = [line.split(None, 1)[0] for line in lines if line.strip() and not line.startswith("#")]
    skipped = [test.get("name") for test in tests if test.get("status") not in RAN]
    skipped += [case.name for case in cases if case.outcome == "skipped"]
    wrong = [name for name in skipped if not any(re.fullmatch(entry, name) for entry in allowed)]
    unseen = [test.get("name") for test in tests if test not in failed and
              any(case.outcome == "failed" for case in cases_of(test, options.cases))]
    for name in unseen:
        print(f"passed, but its report of cases is missing or has failures: {name}", file=sys.stderr)
    for name in wrong:
        print(f"skipped, but must run here: {name}", file=sys.stderr)
    if not tests:
        print("no test ran", file=sys.stderr)
    return 1 if wrong or unseen or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
