"""Bounds: the largest answer of a surface. Long texts are cut, lists never are.

A list that ends early would lose the items before its `next`. So an answer that is too large with short texts is refused, and
the error names the fields that ask for less.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oakleaf.errors import AnswerTooLarge, shorten
from oakleaf.verbs.base import Verb
from oakleaf.verbs.fields import fields

Json = dict[str, Any]
OMITTED = "omitted_chars"
"""The field of an answer that counts the characters cut from its texts."""
_LENGTHS = (8_000, 4_000, 2_000, 1_000, 500)
"""The longest text of an answer that is too large, tried in this order. No id or cursor is as long as the last."""
_NAMED = 4


def bounded(verb: Verb, answer: Json, most: int) -> Json:
    """Return an answer in at most `most` bytes of JSON: unchanged, or with its longest texts cut."""
    if (size := json_size(answer)) <= most:
        return answer
    for length in _LENGTHS:
        shorter = _cut(answer, length)
        if json_size(shorter) <= most:
            return {**shorter, OMITTED: answer.get(OMITTED, 0) + _characters(answer) - _characters(shorter)}
    raise AnswerTooLarge(verb.name, size, most, narrowing(verb))


def narrowing(verb: Verb) -> list[str]:
    """Return the fields that ask for less, `limit` first."""
    names = [
        field.name
        for field in fields(type(verb)).values()
        if not (field.is_local or field.is_required or field.is_flag)
    ]
    return sorted(names, key=lambda name: name != "limit")[:_NAMED]


def json_size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _cut(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return shorten(value, length)
    if isinstance(value, dict):
        return {name: _cut(item, length) for name, item in value.items()}
    return [_cut(item, length) for item in value] if isinstance(value, list | tuple) else value


def _characters(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return (
        sum(map(_characters, value))
        if isinstance(value, list | tuple)
        else isinstance(value, str) and len(value)
    )
