"""Random sessions in a real store: any path of `random_logs`, with a random clock and the usage of its model calls.

Some sessions are rewound in the middle, some are forks. Some model calls were answered, some failed, and some have an
unknown outcome.
"""

from __future__ import annotations

from itertools import cycle

from hypothesis import strategies as st
from msgspec.structs import replace

from oakleaf import Session
from oakleaf.core.drafts import Blob, Draft
from oakleaf.core.entries import Entry
from oakleaf.core.facts import ModelCallFailed
from oakleaf.core.usage import Call, Usage
from oakleaf.log.runtime import Runtime
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from support.random_logs import BLOBS, paths

usages = st.builds(Usage, *[st.none() | st.integers(0, 9_999)] * 4)
call_outcomes = st.sampled_from(["none", "answered", "failed", "lost"])


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    session = Store(MemoryStore(), draw(runtimes())).start(draw(st.none() | st.just("agent")))
    for name in [*BLOBS, "gone"]:
        session.log.store.put_blob(Blob(name, "image/png", b""), 0)
    written: list[
        tuple[int, Entry]
    ] = []  # with the leaf before it: a result that ends a turn appends its answer too
    for entry in draw(paths()):
        written.append((session.leaf.seq, entry))
        _append(draw, session, entry)
    end = draw(st.sampled_from(["here", "rewound", "forked"]))
    if end == "here":
        return session
    place = draw(st.integers(0, session.leaf.seq))
    if end == "forked":
        session = session.fork(at=place)
    else:
        session.rewind(place)
    place = session.leaf.seq
    for seq, entry in written:
        if seq >= place:
            _append(draw, session, entry)
    return session


@st.composite
def runtimes(draw: st.DrawFn) -> Runtime:
    ticks = cycle(draw(st.lists(st.integers(0, 50), min_size=1, max_size=9)))
    ids = iter(range(10**6))
    return Runtime(lambda: next(ticks), lambda prefix: f"{prefix}{next(ids)}", lambda: "me", lambda _: True)


def _append(draw: st.DrawFn, session: Session, entry: Entry) -> None:
    log, outcome, runtime = session.log, draw(call_outcomes), session.log.runtime
    call = Call(
        runtime.new_id("c"), 0, log.leaf.seq, None, runtime.now(), draw(usages), provider="p", model="m"
    )
    if outcome in ("failed", "lost"):
        log.record(ModelCallFailed(), calls=[replace(call, failed=outcome == "failed")])
    is_answered = outcome == "answered" and entry.role == "assistant"
    rows = [replace(call, answer_seq=log.leaf.seq + 1)] if is_answered else []
    log.append([Draft(entry.payload, evidence=entry.evidence)], calls=rows)
