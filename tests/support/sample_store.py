"""A store with everything a viewer must show: every kind of entry, every outcome, forks, tasks, replays, hostile text."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TypeVar

import oakleaf
from oakleaf import Reasoning, ScriptedModel, ToolCall, assistant, system, tool_result, user
from oakleaf.models.prices import Rates
from oakleaf.session import Session
from oakleaf.store import Store

Location = TypeVar("Location", Path, str)
CASE, BUILD, HOSTILE, WAITING, TASK = "ses_case", "ses_build", "ses_hostile", "ses_waiting", "ses_task"

PROMPT = "You help the customers of a small shop. Be brief, be kind, and look before you promise anything."
STRICT = "You help the customers of a small shop. Be brief, be kind.\nNever refund by yourself: a colleague decides."
REPORT = """\
The tests failed for **one reason**: `parse_date` accepted a month of 13.

1. `dates.py` compared with `>` where it needs `>=`
2. the test used the *old* fixture

| file | before | after |
|---|---|---|
| dates.py | 3 failed | 0 failed |
| test_dates.py | 41 passed | 44 passed |

```python
def parse_date(text: str) -> date:
    year, month, day = map(int, text.split("-"))
    if not 1 <= month <= 12:  # was: month > 12
        raise ValueError(f"no month {month}")
    return date(year, month, day)
```

> Nothing else changed. See [the style guide](https://example.com/style) for the names.
"""


@oakleaf.tool(effect="read")
def look_up(order: int) -> dict[str, object]:
    """Look an order up."""
    return {
        "order": order,
        "status": "lost by the carrier",
        "paid": 25,
        "customer": {"name": "Ann", "since": 2019},
    }


@oakleaf.tool(dry_run=lambda order: {"order": order, "would refund": 25})
def refund(order: int) -> dict[str, object]:
    """Give the money back."""
    return {"order": order, "refunded": 25}


@oakleaf.tool(approval=True)
def pay_out(amount: int, account: str) -> dict[str, object]:
    """Pay money out; a person is asked first."""
    return {"paid": amount, "to": account}


def model_by_answer_count(
    *lines: object, model: str = "scripted-large", rates: Rates = Rates(3.0, 15.0)
) -> ScriptedModel:
    """Return a model that picks the next line by the number of answers in the history."""
    return ScriptedModel(
        lambda request: lines[sum(message.role == "assistant" for message in request.messages)],  # type: ignore[arg-type,return-value]
        model=model,
        rates=rates,
    )


@oakleaf.tool(effect="idempotent")
async def delegate_payment(amount: int, account: str, ctx: oakleaf.ToolContext) -> str:
    """Have a colleague pay it out, who asks a person first."""
    asks = assistant(ToolCall("pay_1", "pay_out", {"amount": amount, "account": account}))
    return await ctx.task(
        f"Pay {amount}.", models=[model_by_answer_count(asks, "The colleague paid.")], tools=[pay_out]
    )


def support_model() -> ScriptedModel:
    return model_by_answer_count(
        assistant("Let me look at that order.", ToolCall("call_1", "look_up", {"order": 41})),
        assistant(
            "The carrier lost it. I refund you right away.", ToolCall("call_2", "refund", {"order": 41})
        ),
        "Your order 41 was lost by the carrier. I have refunded 25 to your card.",
        "Within three working days.",
        "You are welcome. Is there anything else?",
    )


def strict_support_model() -> ScriptedModel:
    return model_by_answer_count(
        assistant("Let me look at that order.", ToolCall("call_1", "look_up", {"order": 41})),
        "Your order 41 was lost by the carrier. A colleague will check the refund and write to you today.",
        "As soon as my colleague has checked it.",
        "You are welcome.",
        model="scripted-small",
        rates=Rates(1.0, 5.0),
    )


def fill(place: Location) -> Location:
    with oakleaf.open(place) as store:
        hostile(store)
        waiting(store)
        build(store)
        case(store)
    return place


def case(store: Store) -> None:
    """A support case, a fork of it, and a replay with a stricter prompt that comes out differently."""
    case = store.start("support", [system(PROMPT)], session_id=CASE, title="Order 41", tags={"team": "blue"})
    for text in ("Where is order 41?", "When will I have the money?", "Thank you!"):
        case.send_sync(text, model=support_model(), tools=[look_up, refund])
    case.fork(at=8, title="Order 41, another try", prompt_patch="Offer a voucher first.")
    case.replay_sync(
        model=strict_support_model(), prompt=STRICT, tools=[look_up, refund], mode="dry", on_miss="continue"
    )


def waiting(store: Store) -> None:
    session = store.start("payments", [system("You pay people.")], session_id=WAITING, title="Pay Ann")
    model = model_by_answer_count(
        assistant("I need approval.", ToolCall("p1", "pay_out", {"amount": 40, "account": "ANN-7"})), "Paid."
    )
    session.send_sync("Pay Ann 40", model=model, tools=[pay_out])


def build(store: Store) -> None:
    """A coding agent's session: commands, files, edits, every outcome, pictures, thoughts, branches."""
    session = store.start("coder", [system(PROMPT * 8)], session_id=BUILD, title="Fix the failing date tests")
    _first_turn(session)
    _outcomes(session)
    picture = store.put_blob(png(160, 90), "image/png", "plot.png")
    missing = store.put_blob(b"%PDF-1.4 nothing", "application/pdf", "report.pdf")
    session.append([user("Here is the plot of last night.", picture)])
    session.append([assistant("I see three spikes; the report says why.", missing)])
    _branches(session)
    task = store.start_task(
        session, "reviewer", [system("You review.")], session_id=TASK, title="Review dates.py"
    )
    task.send_sync("Review dates.py", model=model_by_answer_count("Looks right; two names could be clearer."))
    session.send_sync("Anything else?", model=_coder("Nothing else. The suite is green."))
    session.note({"ticket": "BUG-17", "build": {"number": 4711, "ok": True}})
    session.set(model="scripted-small", prompt_patch="Answer in one sentence.")
    session.compact(
        "Dates were parsed wrongly; fixed in dates.py, 44 tests pass.", first_kept=session.leaf.seq - 4
    )
    session.send_sync("Write the changelog line.", model=_coder("- Months beyond December are refused."))


def _coder(*lines: object) -> ScriptedModel:
    remaining = list(lines)
    return ScriptedModel(lambda request: remaining.pop(0), model="scripted-large", rates=Rates(3.0, 15.0))  # type: ignore[arg-type,return-value]


def _first_turn(session: Session) -> None:
    reasoning = Reasoning(
        "The failing test is about months. I should run it first, then read the parser.\n\nThen fix it."
    )
    session.append([user("The date tests fail since yesterday. **Please fix them** and tell me why.")])
    session.append(
        [
            assistant(
                reasoning,
                "I run the tests first.",
                ToolCall("b1", "shell", {"command": "pytest tests/test_dates.py -q --tb=short"}),
                ToolCall("b2", "read_file", {"path": "src/dates.py"}),
            )
        ]
    )
    output = "\n".join(f"tests/test_dates.py::test_month_{n} FAILED [{n:3d}%]" for n in range(60))
    session.append([tool_result("b1", f"{output}\n3 failed, 41 passed in 0.82s", error=True)])
    code = 'def parse_date(text: str) -> date:\n    """One day."""\n    year, month, day = map(int, text.split("-"))\n    return date(year, month, day)  # TODO: check\n'
    session.append([tool_result("b2", code)])
    old = '    year, month, day = map(int, text.split("-"))\n    return date(year, month, day)  # TODO: check'
    new = '    year, month, day = map(int, text.split("-"))\n    if not 1 <= month <= 12:\n        raise ValueError(f"no month {month}")\n    return date(year, month, day)'
    session.append([assistant(ToolCall("b3", "edit_file", {"path": "src/dates.py", "old": old, "new": new}))])
    session.append([tool_result("b3", "replaced 1 place in src/dates.py")])
    session.append([assistant(REPORT)])


def _outcomes(session: Session) -> None:
    """Add one call of every outcome."""
    session.append([user("Now release it.")])
    names = ["deploy", "charge_card", "delete_branch", "send_mail", "tag_release", "fetch_changelog"]
    calls = [ToolCall(f"o{n}", name, {"version": "1.4.2", "dry": False}) for n, name in enumerate(names)]
    session.append([assistant("I do what a release needs.", *calls)])
    results: list[tuple[str, object, bool]] = [
        ("done", {"deployed": ["eu-1", "us-2"], "took": 4.2}, False),
        ("unknown", "started, and nobody heard how it ended", True),
        ("denied", "a person said no", True),
        ("interrupted", "the process was killed", True),
        ("dry_run", {"would tag": "v1.4.2"}, False),
        ("not_recorded", "no recording of this call", True),
    ]
    for n, (outcome, content, is_error) in enumerate(results):
        session.append([tool_result(f"o{n}", content, error=is_error, outcome=outcome)])  # type: ignore[arg-type]
    long = "\n".join(
        f"line {n} of a long log, with the words that logs have: retry, timeout, ok" for n in range(2_000)
    )
    session.append([assistant(ToolCall("l1", "shell", {"command": "cat build.log", "timeout": 10}))])
    session.append([tool_result("l1", long)])
    session.append([assistant("Released, except for the mail: its outcome is not known.")])


def _branches(session: Session) -> None:
    """Add two abandoned branches beside the current one."""
    at = session.leaf.seq
    for n in range(2):
        session.append([user(f"Could you try way {n + 1}?")])
        session.append([assistant(f"Way {n + 1} does not work: the parser is shared.")])
        session.rewind(at, summary=f"Way {n + 1} breaks the parser." if n else None)


HOSTILE_TEXTS = (
    '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">',
    "[click](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>) <javascript:alert(1)>",
    "</script></style></textarea><svg onload=window.hacked=5>",
    "safe \u202egnp.exe\u202c text, a NUL \x00 and an escape \x1b[31mred\x1b[0m \x9b31m \u2066isolate\u2069",
    '`<b>code</b>` **<i>bold</i>** ![pic](http://example.invalid/x.png"onload="1) <http://a"onclick="1>',
    "| <b>a</b> | b |\n|---|---|\n| <script>1</script> | [x](vbscript:1) |",
    "&lt;script&gt; &#x6A;avascript:1 [a](JaVaScRiPt:1) [b](  javascript:1) [c](//evil.invalid) [d](\tjavascript:1)",
)


def hostile(store: Store) -> None:
    """Add a session full of markup and control characters that must be shown as text."""
    title = "<img src=x onerror=window.hacked=9> \u202eltr"
    session = store.start("<b>agent</b>", [system(HOSTILE_TEXTS[0])], session_id=HOSTILE, title=title)
    session.tag(**{"<u>tag</u>": "<script>window.hacked=10</script>"})
    for text in HOSTILE_TEXTS:
        session.append([user(text)])
        call = ToolCall(
            "h1", "<script>tool</script>", {"<img src=x onerror=window.hacked=6>": text, "path": text}
        )
        session.append([assistant(text, Reasoning(text), call)])
        session.append([tool_result("h1", text)])
        session.append([assistant(text)])
    session.append([user("x" * 300_000)])
    session.append([assistant("*_`[" * 20_000 + "\n" + "> " * 3_000 + "\n" + "- " * 3_000)])
    html = store.put_blob(b"<script>window.hacked=7</script>", "text/html", "<evil>.html")
    svg = store.put_blob(
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=8'/>", "image/svg+xml", "e.svg"
    )
    session.append([user(html, svg)])
    session.append([assistant(ToolCall("h2", "shell", {"command": "echo '</script>' && rm -rf \u202e/"}))])
    session.append([tool_result("h2", "\x1b]0;title\x07\x00<script>window.hacked=11</script>" * 50)])
    session.append([assistant("done")])
    session.compact("<script>window.hacked=12</script>")


def huge(place: Path, entries: int = 100_000, branches: int = 5_000) -> str:
    """Create one long path with branches along all of it."""
    with oakleaf.open(place) as store:
        session = store.start("long", [system(PROMPT)], session_id="ses_huge", title="A very long session")
        every = max(1, entries // branches)
        for n in range(branches):
            _stretch(session, n, every)
        return session.session_id


def _stretch(session: Session, n: int, every: int) -> None:
    """Append `every` entries and an abandoned branch after them."""
    items: list[oakleaf.Message] = []
    for m in range(every // 4):
        items += [
            user(f"Question {n}.{m}: where is it?"),
            assistant("I look.", ToolCall("c", "look", {"n": n, "m": m})),
            tool_result("c", {"n": n, "text": "words " * 20}),
            assistant(f"Answer {n}.{m}: it is in **row {n}**, as always.\n\nNothing else."),
        ]
    session.append(items)
    leaf = session.leaf.seq
    session.append([user(f"What if {n}?"), assistant(f"Then {n}.")])
    session.rewind(leaf)


def png(width: int, height: int) -> bytes:
    """Return a small picture with a green gradient."""
    rows = b"".join(
        b"\0" + bytes(v for x in range(width) for v in (30, 60 + x, 90 + y)) for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
