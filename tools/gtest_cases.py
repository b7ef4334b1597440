"""gtest_cases.py FOLDER: prints the unit test cases that failed or were skipped in the last run,
with the reason.

A ctest entry is a whole test program, so ctest does not see its cases. Each entry ENTRY writes
FOLDER/ENTRY.xml.
"""

import dataclasses
import pathlib
import sys
import xml.etree.ElementTree


@dataclasses.dataclass(frozen=True)
class Case:
    name: str  # ENTRY.Suite.Case
    outcome: str  # "passed", "failed" or "skipped"
    message: str


def read(report: pathlib.Path) -> list[Case]:
    """Returns the cases of one ctest entry."""
    found = []
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        failure, skipped = case.find("failure"), case.find("skipped")
        if failure is not None:
            outcome, message = "failed", failure.get("message", "")
        elif skipped is not None or case.get("status") == "notrun":
            outcome, message = "skipped", skipped.get("message", "") if skipped is not None else "disabled"
        else:
            outcome, message = "passed", ""
        name = f"{report.stem}.{case.get('classname')}.{case.get('name')}"
        found.append(Case(name, outcome, " ".join(message.split())))
    return found


def main() -> None:
    for report in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
        for case in read(report):
            if case.outcome != "passed":
                print(f"{case.outcome}: {case.name}: {case.message}")


if __name__ == "__main__":
    main()
