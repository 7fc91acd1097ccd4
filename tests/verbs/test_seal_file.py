"""A seal as a file: written once, compared, refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oakleaf.errors import InvalidArgument, InvalidValue, SealRefused
from oakleaf.store import Store
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.verbs.base import Caller
from oakleaf.verbs.health import Verify
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.seal import SealStore, read_seal
from oakleaf.verbs.trash import Purge
from support.golden_text import check_golden
from support.runtime import deterministic_runtime
from support.sealed_store import fill

NOW = 1_000_000_000_000_000 + 3 * 3_600_000_000


@pytest.fixture
def shop() -> Store:
    shop = Store(MemoryStore(), deterministic_runtime())
    fill(shop)
    return shop


@pytest.fixture
def file(shop: Store, tmp_path: Path) -> Path:
    SealStore(output=str(tmp_path / "s.seal"))(shop)
    return tmp_path / "s.seal"


def test_a_seal_has_a_line_for_each_session(file: Path) -> None:
    assert len(file.read_text().splitlines()) == 2 + 3
    assert "order 41" not in file.read_text()
    assert json.loads(file.read_text())["oakleaf_seal"] == 1


def test_a_sound_store_is_as_its_seal(shop: Store, file: Path) -> None:
    verb = Verify(against=str(file))
    result = verb(shop)
    assert verb.exit_code(result) == 0
    check_golden("verify_against", verb, result, NOW)


def test_what_was_purged_is_told_apart_by_its_receipt(shop: Store, file: Path, tmp_path: Path) -> None:
    shop.delete("ses_sealed")
    purged = Purge(sessions=["ses_sealed"])(shop)
    verb = Verify(against=str(file))
    result = verb(shop)
    assert verb.exit_code(result) == 1
    check_golden("verify_against_removed", verb, result, NOW)
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps({"done": True, "purged": purged.purged}))
    verb = Verify(against=str(file), receipt=[str(receipt)])
    assert verb.exit_code(verb(shop)) == 0
    check_golden("verify_against_receipt", verb, verb(shop), NOW)


def test_a_removed_session_can_be_named(shop: Store, file: Path) -> None:
    shop.delete("ses_sealed")
    shop.purge("ses_sealed")
    (problem,) = Verify("ses_sealed", against=str(file))(shop).problems
    assert str(problem) == "ses_sealed session: it was removed since the seal"


def test_a_plan_is_no_receipt(shop: Store, file: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps({"done": False, "purged": ["ses_sealed"]}))
    with pytest.raises(InvalidValue, match="plan"):
        Verify(against=str(file), receipt=[str(receipt)])(shop)


def test_a_signed_seal_wants_its_key(shop: Store, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_bytes(b"k" * 32)
    other.write_bytes(b"o" * 32)
    file = str(tmp_path / "signed.seal")
    SealStore(output=file, key=str(key))(shop)
    assert Verify(against=file, key=str(key))(shop).problems == []
    for wrong in (None, str(other)):
        with pytest.raises(SealRefused):
            Verify(against=file, key=wrong)(shop)
    Path(file).write_text(Path(file).read_text().replace('"owner":null', '"owner":"x"'))
    with pytest.raises(SealRefused, match="signature"):
        Verify(against=file, key=str(key))(shop)


def test_an_altered_head_is_refused_without_a_key(shop: Store, file: Path) -> None:
    file.write_text(file.read_text().replace("ses_task", "ses_tusk"))
    with pytest.raises(SealRefused, match="altered"):
        Verify(against=str(file))(shop)


def test_a_seal_is_never_written_over(shop: Store, file: Path) -> None:
    with pytest.raises(InvalidArgument):
        SealStore(output=str(file))(shop)


def test_another_file_is_no_seal(shop: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    for name, words in (("x", "not a seal"), ("absent", "cannot read")):
        with pytest.raises(InvalidValue, match=words):
            Verify(against=str(tmp_path / name))(shop)


@pytest.mark.parametrize(
    "verb",
    [
        Verify(against="s", since="1d"),
        Verify(against="s", sample=1),
        Verify(key="k"),
        Verify(receipt=["r"]),
        Verify("ses_sealed", since="1d"),
    ],
)
def test_fields_that_say_nothing_together_are_refused(shop: Store, verb: Verify) -> None:
    with pytest.raises(InvalidArgument):
        verb.run(Caller(shop))


def test_a_seal_without_a_file_is_printed(shop: Store, tmp_path: Path) -> None:
    verb = SealStore()
    sealed = verb(shop)
    (tmp_path / "printed").write_text("\n".join(map(str, verb.lines(sealed, Screen()))))
    assert read_seal(str(tmp_path / "printed"), None) == sealed
