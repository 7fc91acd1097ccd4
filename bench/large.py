"""Build one very large session, and many small ones, with the public API."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import oakleaf
from oakleaf import Text, ToolCall, assistant, tool_result, user
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Payload
from oakleaf.core.tree import Leaf
from oakleaf.core.usage import Call, Price, Usage
from oakleaf.store import Store

SENTENCE = "the parcel of order 41 was last seen in the module of zanzibar and nobody knows what became of it"
WORDS = SENTENCE.split()
BATCH = 1_000


def turn(n: int, random: Random) -> Iterator[Payload]:
    """Four entries: input, call, result, answer."""
    text = " ".join(random.choices(WORDS, k=40))
    yield user(f"Question {n}: {text}")
    yield assistant(Text("Let me look."), ToolCall(f"call_{n}", "track", {"order": n, "why": text}))
    yield tool_result(f"call_{n}", {"order": n, "lines": [text] * 3})
    yield assistant(f"Answer {n}: {text}")


def large_session(store: Store, entries: int = 100_000, branches: int = 5_000) -> oakleaf.Session:
    """Build a session of this many entries and branches; a fifth of the branches start from the previous one."""
    random = Random(7)
    session = store.start(agent="large", seeds=[oakleaf.system("You find parcels.")], title="The large one")
    trunk = entries - 4 * (branches - 1)
    for first in range(0, trunk // 4, BATCH // 4):
        many = [p for n in range(first, min(first + BATCH // 4, trunk // 4)) for p in turn(n, random)]
        _append(session, many)
    main = session.leaf
    reached = [Leaf(main.branch, 1)]
    for n in range(branches - 1):
        deep = n % 5 == 0
        under = reached[-1] if deep else Leaf(main.branch, 1 + 4 * random.randrange(trunk // 4))
        session.log.move(under)
        _append(session, list(turn(n, random)))
        if deep:
            reached.append(
                Leaf(session.leaf.branch, session.leaf.seq - 3)
            )  # not its tail, which would extend the branch
    session.log.move(main)
    return session


def _append(session: oakleaf.Session, payloads: list[Payload]) -> None:
    """Append with a ledger row for each answer, as a run does."""
    at, calls = session.leaf.seq, []
    for n, payload in enumerate(payloads, 1):
        if isinstance(payload, oakleaf.Message) and payload.role == "assistant":
            usage = Usage(900, 40, 100, 0)
            price = Price(12_345, "bench")
            calls.append(
                Call(
                    f"c{at + n}-{session.leaf.branch}",
                    0,
                    at + n - 1,
                    at + n,
                    1,
                    usage,
                    price=price,
                    model="m",
                )
            )
    session.log.append([Draft(payload) for payload in payloads], calls=calls)


def many_sessions(store: Store, count: int) -> None:
    agents = ("support", "sales", "research", "billing")
    for n in range(count):
        session = store.start(
            agent=agents[n % 4], model=f"model-{n % 7}", title=f"Session {n}" if n % 2 else None
        )
        if n % 10 == 0:
            session.append([user(f"Where is order {n}?"), assistant("It is lost.")])
