"""verdict.py JUNIT_XML: what the failing tests have said, and a failure when a test was skipped that is not named in
may-skip."""

import pathlib
import re
import sys
import xml.etree.ElementTree

RAN = {"run", "fail"}
SHOWN_LINES = 150


def main() -> None:
    lines = pathlib.Path(__file__).with_name("may-skip").read_text().splitlines()
    allowed = [line.split(None, 1)[0] for line in lines if line.strip() and not line.startswith("#")]
    cases = list(xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"))
    # ctest shows it where it happens, thousands of lines before the end.
    for case in cases:
        if case.get("status") == "fail":
            said = (case.findtext("system-out") or "").splitlines()
            print(f"ci: what {case.get('name')} said at its end:", *said[-SHOWN_LINES:], sep="\n")
    skipped = [case.get("name") for case in cases if case.get("status") not in RAN]
    wrong = [name for name in skipped if not any(re.fullmatch(entry, name) for entry in allowed)]
    for name in wrong:
        print(f"skipped, but has to run here: {name}", file=sys.stderr)
    if not cases:
        print("no test ran", file=sys.stderr)
    sys.exit(1 if wrong or not cases else 0)


if __name__ == "__main__":
    main()
