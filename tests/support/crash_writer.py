"""A process for the tests to kill: writes realistic turns through the public API and reports every commit.

Before each commit it prints the expected session (`will`), and after the commit the same again (`did`), one line
each. Both come from a mirror in plain lists and dicts, so the test that kills the process can compare the reopened
store with something Oakleaf did not compute.

    python crash_writer.py PATH SEED THREADS BLOB_BYTES COMMITS     (COMMITS 0: until killed)
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
from typing import Any

import oakleaf
from oakleaf import Attachment, Entry, Session, Store, ToolCall, Usage, assistant, tool_result, user

MAX_SESSIONS = 5


def entry_text(entry: Entry) -> str:
    """Describe an entry in a format that does not depend on Oakleaf's encoding."""
    message = entry.message
    if message is None:
        return f"{entry.kind}:{entry.payload.data.get('said')}"  # type: ignore[union-attr]  # only notes are written
    calls = ",".join(f"{call.id}={call.arguments['n']}" for call in message.calls)
    results = ",".join(f"{r.call_id}={r.content[0].text}" for r in message.results)  # type: ignore[union-attr]
    media = ",".join(handle.hash[:8] for handle in message.media)
    return f"{message.role}:{message.text}|{calls}|{results}|{media}"


def patches(entry: Entry) -> list[dict[str, Any]]:
    if entry.message is None:
        return [entry.payload.state or {}]  # type: ignore[union-attr]
    return [(result.details or {}).get("state", {}) for result in entry.message.results]


def digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


class Mirror:
    """The expected content of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.texts: list[str] = []
        self.states: list[dict[str, Any]] = [{}]
        self.rests = [0]
        for entry in session.path():
            self.add(entry_text(entry), *patches(entry))
            if entry.message is not None and entry.role == "assistant" and not entry.message.calls:
                self.rests.append(len(self.texts))
        totals = session.row.totals
        self.totals = [totals.calls, totals.input_tokens, totals.output_tokens]
        self.commits = sum(fact.key is not None for fact in session.journal())

    def add(self, text: str, *updates: dict[str, Any]) -> None:
        state = dict(self.states[-1])
        for update in updates:
            for key, value in update.items():
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        self.texts.append(text)
        self.states.append(state)

    def summary(self) -> dict[str, Any]:
        return {
            "session": self.session.session_id,
            "commit": self.commits,
            "length": len(self.texts),
            "said": digest(self.texts),
            "state": self.states[-1],
            "totals": self.totals,
        }


class Writer:
    def __init__(self, store: Store, rng: random.Random, blob_bytes: int, commits: int) -> None:
        self.store, self.rng = store, rng
        self.blob_bytes, self.commits_left = blob_bytes, commits or -1
        self.serial = rng.randrange(1 << 30)

    def next(self) -> int:
        self.serial += 1
        return self.serial

    def announce(self, mirror: Mirror) -> None:
        mirror.commits += 1
        report({"t": "will", **mirror.summary()})

    def confirm(self, mirror: Mirror) -> None:
        leaf, cursor = mirror.session.leaf, mirror.session.log.cursor
        report(
            {
                "t": "did",
                **mirror.summary(),
                "leaf": [leaf.branch, leaf.seq],
                "id": cursor.entry_id.hex(),
                "open": len(cursor.open_calls),
            }
        )
        self.commits_left -= 1
        if self.commits_left == 0:
            report({"t": "done"})
            time.sleep(600)  # until the test kills it

    # -- one turn ----------------------------------------------------------------------------------

    def turn(self, mirror: Mirror) -> None:
        session = mirror.session
        if session.log.cursor.turn:
            self.announce(mirror)
            handle = session.turn()
            report({"t": "resumed", "session": session.session_id, "open": len(session.open_tool_calls)})
        else:
            handle = session.turn(self.input(mirror))
            self.announce(mirror)
        with handle as turn:
            self.confirm(mirror)
            while session.log.cursor.turn:
                if session.open_tool_calls:
                    self.result(mirror, turn)
                else:
                    self.answer(mirror, turn)
        mirror.rests.append(len(mirror.texts))

    def input(self, mirror: Mirror) -> oakleaf.Message:
        text = f"input {self.next()}"
        if self.blob_bytes and self.rng.random() < 0.3:
            data = self.rng.randbytes(self.rng.randrange(1, self.blob_bytes))
            mirror.add(f"user:{text}|||{hashlib.sha256(data).hexdigest()[:8]}")
            return user(text, Attachment(data, "application/octet-stream"))
        mirror.add(f"user:{text}|||")
        return user(text)

    def answer(self, mirror: Mirror, turn: oakleaf.Turn) -> None:
        if self.rng.random() < 0.1:
            self.count(mirror, 1, 0)
            self.announce(mirror)
            turn.failed("overloaded", usage=Usage(1, 0))
            self.confirm(mirror)
        many = self.rng.choice([0, 0, 1, 2, 3])
        calls = [ToolCall(f"call_{self.next()}", "work", {"n": self.next()}) for _ in range(many)]
        text = f"answer {self.next()} " + "x" * self.rng.randrange(600)
        tokens = self.rng.randrange(1, 900), self.rng.randrange(1, 90)
        call_text = ",".join(f"{call.id}={call.arguments['n']}" for call in calls)
        mirror.add(f"assistant:{text}|{call_text}||")
        self.count(mirror, *tokens)
        self.announce(mirror)
        turn.answer(assistant(text, *calls), usage=Usage(*tokens))
        self.confirm(mirror)

    def count(self, mirror: Mirror, tokens_in: int, tokens_out: int) -> None:
        calls, before_in, before_out = mirror.totals
        mirror.totals = [calls + 1, before_in + tokens_in, before_out + tokens_out]

    def result(self, mirror: Mirror, turn: oakleaf.Turn) -> None:
        waiting = [call.call.id for call in mirror.session.open_tool_calls]
        self.rng.shuffle(waiting)
        if self.rng.random() < 0.15:
            update = self.update()
            mirror.add(f"note:{self.next()}", update)
            self.announce(mirror)
            mirror.session.note({"said": self.serial}, state=update)
            self.confirm(mirror)
        together = waiting[: self.rng.choice([1, 1, 2])]
        messages = []
        for call_id in together:
            text, update = f"result {self.next()}", self.update()
            mirror.add(f"tool:||{call_id}={text}|", update)
            messages.append(tool_result(call_id, text, state=update))
        self.announce(mirror)
        if len(messages) == 1:
            result = messages[0].results[0]
            turn.result(result.call_id, text, state=update)
        else:
            mirror.session.append(messages)
        self.confirm(mirror)

    def update(self) -> dict[str, Any]:
        return {f"k{self.rng.randrange(9)}": self.rng.choice([None, self.next(), f"v{self.serial}"])}

    # -- between turns -----------------------------------------------------------------------------

    def move(self, mirror: Mirror) -> Mirror | None:
        """Now and then something other than the next turn; a fork gives a new mirror."""
        luck = self.rng.random()
        if luck < 0.15:
            to = self.rng.choice(mirror.rests)
            del mirror.texts[to:], mirror.states[to + 1 :]
            mirror.rests = [rest for rest in mirror.rests if rest <= to]
            self.announce(mirror)
            mirror.session.rewind(to)
            self.confirm(mirror)
        elif luck < 0.25:
            self.announce(mirror)
            mirror.session.title(f"title {self.next()}")
            self.confirm(mirror)
        elif luck < 0.35:
            report({"t": "forks", "session": mirror.session.session_id})
            fork = Mirror(mirror.session.fork(at=self.rng.choice(mirror.rests)))
            self.confirm(fork)
            return fork
        return None


def report(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")  # one write of less than PIPE_BUF: whole or not at all


def write_forever(store: Store, mirrors: list[Mirror], writer: Writer, max_sessions: int) -> None:
    while True:
        mirror = writer.rng.choice(mirrors)
        writer.turn(mirror)
        fork = writer.move(mirror)
        if fork is not None and len(mirrors) < max_sessions:
            mirrors.append(fork)


def warm_up() -> None:
    """Load what is loaded on first use, so that the kill falls into writing and not into imports."""
    with oakleaf.open("memory:").start().turn("x") as turn:
        turn.answer(assistant("y"), usage=Usage(1, 1))


def main() -> None:
    path, seed, threads, blob_bytes, commits = sys.argv[1], *map(int, sys.argv[2:6])
    store = oakleaf.open(path)
    mirrors = [Mirror(store.session(row.session_id)) for row in store.all_sessions()][:MAX_SESSIONS]
    while len(mirrors) < threads:
        report({"t": "starts"})
        mirror = Mirror(store.start(agent="crash"))
        report({"t": "did", **mirror.summary(), "leaf": [mirror.session.leaf.branch, 0], "id": "", "open": 0})
        mirrors.append(mirror)
    warm_up()
    report({"t": "ready"})
    for n in range(threads):
        writer = Writer(store, random.Random(seed * 100 + n), blob_bytes, commits)
        args = (store, mirrors[n::threads], writer, MAX_SESSIONS // threads)
        threading.Thread(target=write_forever, args=args).start()


if __name__ == "__main__":
    main()
