#!/usr/bin/env python3
"""Compares the driver's answers about a program's pools with and without the agent, on any GPU.

  compare_pools.py AGENT_TARGET AGENT_LIBRARY

A tool for real GPUs; on the software GPU pools_test.cc compares the same. Reserved memory depends
on the driver, and times vary; both are only shown. Exit code 1: anything else differs.
"""

import os
import subprocess
import sys

DIALOGUE = """
pool-get 1|pool-get 2|pool-get 3|pool-get 4|pool-get 7|pool-get 8|pool-get 9
pool-alloc 1000 0|pool-alloc 3000000 1|pool-alloc 50331648 2|pool-get 7|pool-get 8
pool-pointer 0 0|pool-pointer 1 2999999|pool-pointer 2 77|range 1 4711|context 1
pool-alloc 0 0|pool-alloc 4398046511104 0|ipc 2
pool-free 1 0|pool-get 7|pool-get 8|pool-put 8 1|pool-put 8 0|pool-get 8|pool-put 7 0|pool-put 5 0
pool-put 2 0|pool-get 2|pool-put 4 1073741824|pool-get 4|pool-put 4 0
pool-access-of 0|pool-access 0 3|pool-access 0 0
free 0|pool-get 7|sync-context|pool-trim 0|pool-free 2 2|sync-context|pool-trim 0|pool-get 7|pool-destroy
capture|pool-free 2 0|pool-alloc 4096 1|end-capture
pool-own 0|pool-get 4|pool-get 7|pool-alloc 4096 0|pool-get 7|pool-destroy
"""
SHOWN = """
pool-get 5|pool-alloc 1000 1|pool-get 5|pool-get 7|pool-alloc 3000000 1|pool-get 5|pool-get 7|sync 1|pool-get 5
pool-put 4 4294967296|pool-time 10000 4096|pool-time 10000 4194304|pool-time 1000 104857600
"""


def lines(text: str) -> list[str]:
    return text.strip().replace("\n", "|").split("|")


def answers(target: str, preload: str) -> list[str]:
    asked = "\n".join(lines(DIALOGUE) + lines(SHOWN)) + "\n"
    done = subprocess.run(
        [target, "direct"], input=asked, capture_output=True, text=True, timeout=300,
        env={**os.environ, "LD_PRELOAD": preload},
    )
    return done.stdout.splitlines()[1:]


def main() -> int:
    plain, agent = answers(sys.argv[1], ""), answers(sys.argv[1], sys.argv[2])
    asked = lines(DIALOGUE) + lines(SHOWN)
    differ = len(plain) != len(asked) or len(agent) != len(asked)
    print(f"{'':32}{'plain':>36}{'agent':>36}")
    for i, line in enumerate(asked):
        mine = [a[i] if i < len(a) else "(ended)" for a in (plain, agent)]
        same = mine[0] == mine[1] or i >= len(lines(DIALOGUE))
        differ |= not same
        print(f"{line:32}{mine[0]:>36}{mine[1]:>36}{'' if same else '  DIFFERS'}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
