"""verdict.py JUNIT_XML: what the failing tests have said, and a failure when a test was skipped that is not named in
may-skip.

verdict.py --few JUNIT_XML: whether so few have failed that they may run once more.
verdict.py --again JUNIT_XML: the verdict on those that did.
"""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree

RAN = {"run", "fail"}
SHOWN_LINES = 150
FEW = 2


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("junit")
    options = parser.parse_args()
    cases = list(xml.etree.ElementTree.parse(options.junit).iter("testcase"))
    failed = [case for case in cases if case.get("status") == "fail"]
    if options.few:
        return 0 if 0 < len(failed) <= FEW else 1

    lines = pathlib.Path(__file__).with_name("may-skip").read_text().splitlines()
    allowed = [line.split(None, 1)[0] for line in lines if line.strip() and not line.startswith("#")]
    # ctest shows it where it happens, thousands of lines before the end.
    for case in failed:
        said = (case.findtext("system-out") or "").splitlines()
        print(f"ci: what {case.get('name')} said at its end:", *said[-SHOWN_LINES:], sep="\n")
    if options.again:
        for case in cases:
            if case.get("status") == "run":
                print(f"ci: {case.get('name')} failed, and passed alone: it has a race")
    skipped = [case.get("name") for case in cases if case.get("status") not in RAN]
    wrong = [name for name in skipped if not any(re.fullmatch(entry, name) for entry in allowed)]
    for name in wrong:
        print(f"skipped, but has to run here: {name}", file=sys.stderr)
    if not cases:
        print("no test ran", file=sys.stderr)
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
