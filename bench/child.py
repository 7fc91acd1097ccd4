"""One of several processes on one file: print "ready", wait for the start signal, print the time of each step."""

from __future__ import annotations

import sys

import msgspec

import oakleaf

from .crowd import drive
from .workload import MESSAGES_PER_TURN, turns_of


def main(path: str, turns: str, seed: str) -> None:
    load = turns_of(MESSAGES_PER_TURN * int(turns), seed=int(seed))
    with oakleaf.open(path) as sessions:
        session = sessions.start(agent="bench")
        print("ready", flush=True)
        sys.stdin.readline()
        run = drive(session, load)
    sys.stdout.buffer.write(msgspec.json.encode(run))


if __name__ == "__main__":
    main(*sys.argv[1:])
