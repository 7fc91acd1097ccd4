"""No answer to another agent does more work in a long session than in a short one, unless it returns more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf_mcp.verb_tools import call, verbs
from support.long_sessions import LONG, MIDDLE, check_steps, stores

__all__ = ["stores"]  # a fixture

ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "the end": ("show", {"session": "ses_long"}),
    "a window": ("show", {"session": "ses_long", "since": MIDDLE, "last": 3, "until": MIDDLE + 3}),
    "an entry": ("show", {"session": f"ses_long@{MIDDLE}"}),
    "lines of the end": ("log", {"session": "ses_long"}),
    "the newest facts": ("tail", {"session": "ses_long"}),
    "a comparison": ("diff", {"a": f"ses_long@{MIDDLE}", "b": f"ses_long@{MIDDLE + 4}"}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_to_another_agent_does_more_work(
    name: str, stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, arguments = ANSWERS[name]

    def use(store: Any) -> None:
        answer = call(store, verbs()[verb], arguments)
        assert not answer.is_error, answer

    check_steps(use, stores, monkeypatch)


def test_an_agent_gets_the_newest_entries_of_a_long_session(stores: tuple[Path, Path]) -> None:

    with oakleaf.open(stores[1]) as store:
        answer = call(store, verbs()["show"], {"session": "ses_long"})
    assert answer.structured_content is not None
    seqs = [entry["seq"] for entry in answer.structured_content["entries"]]
    assert len(seqs) == 20
    assert seqs[-1] == answer.structured_content["total"] > LONG
    assert f"--until {seqs[0] - 1} -n 20 shows those before" in answer.content[0].text  # type: ignore[union-attr]
