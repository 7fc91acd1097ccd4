"""The address of a store: what may be a mistyped server's is refused, and no message ever shows its password."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import oakleaf
from oakleaf.errors import OakleafError, StoreError, without_passwords
from oakleaf.stores.address import check_store_url
from support.terminal import oakleaf as command

pytestmark = pytest.mark.extra

PASSWORD = "hunter2"
MISTYPED = [
    "postgres:/app:hunter2@db/agents",
    "postgresql:app:hunter2@db/agents",
    "postgresql//app:hunter2@db/agents",
    "//app:hunter2@db/agents",
    "app:hunter2@db/agents",
    "app:hunter2@db:5432/agents",
    "pg://app:hunter2@db/agents",
    "mysql://app:hunter2@db/agents",
    "jdbc:postgresql://db/agents?user=app&password=hunter2",
    "POSTGRESQL://app:hunter2@db/agents",
    " postgresql://app:hunter2@db/agents",
    "'postgresql://app:hunter2@db/agents'",
    "postgresql%3A%2F%2Fapp%3Ahunter2%40db%2Fagents",
    "postgres%3A/app%3Ahunter2@db",
    "host=db password=hunter2",
    "password = 'hunter2'",
    "PASSWORD=hunter2 HOST=db",
    "PGPASSWORD=hunter2 db",
    "user=app\npassword=hunter2",
    "sqlite:///app:hunter2@x.db",
]
MISREAD = [
    "postgresql://app:9/hunter2@db/agents",
    "postgresql://app:hunter2/9@db/agents",
    "postgresql://app:hunter2?x@db/agents",
    "postgresql://app:9?hunter2@db/agents",
    "postgresql://app:9#hunter2@db/agents",
    "postgresql://app:hunter2#x@db/agents",
    "postgresql:///app:hunter2@db/agents",
    "postgresql://app:hunter2%zz@db/agents",
    "postgresql://app:hunter2%@db/agents",
    "postgresql://app:hunter2%00@db/agents",
    "postgresql://app:hunter2@x@db/agents",
    "postgresql://app:hunter2[@db/agents",
    "postgresql://app:hunter2/agents",
]


@pytest.mark.attack
class TestAMistypedAddress:
    @pytest.mark.parametrize("url", [*MISTYPED, *MISREAD])
    def test_is_refused_without_a_word_of_the_password(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(OakleafError) as excinfo:
            oakleaf.open(url)
        shown = "".join(traceback.format_exception(excinfo.value)) + repr(excinfo.value)
        assert PASSWORD not in shown
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("url", [*MISTYPED, *MISREAD])
    def test_is_not_shown_by_a_command(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OAKLEAF_CONFIG", str(tmp_path / "config.toml"))
        for line in (["ls"], ["doctor"], ["migrate", "--yes"], ["worker", "--agent", "x:y"]):
            done = command(*line, store=url)
            assert done.code == 2
            assert PASSWORD not in done.out + done.err
        done = command("copy", "--all", "--to", url, store=str(tmp_path / "s.db"))
        assert PASSWORD not in done.out + done.err

    @pytest.mark.parametrize("url", [*MISTYPED, *MISREAD])
    def test_in_the_configuration_is_not_shown(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OAKLEAF_CONFIG", str(tmp_path / "config.toml"))
        for line in (
            ["config", "store", url],
            ["config"],
            ["config", "--json"],
            ["config", "store"],
        ):
            done = command(*line, store="memory:")
            assert PASSWORD not in done.out + done.err


class TestAnAddress:
    @pytest.mark.parametrize(
        "url",
        [
            *(
                "a.db",
                "./a:b@c.db",
                "/data/a:b@c.db",
                "~/x.db",
                "memory:",
                ":memory:",
                "me@home.db",
                "a b=c.db",
            ),
            *("postgresql://app:secret@db/agents", "postgres://app@db:5432/agents", "postgresql:///agents"),
            *(
                "postgresql://a:1,b:2/agents?user=me@server",
                "postgresql://[::1]:5432/x",
                "postgresql://u:p%40q@h/d",
            ),
            "postgresql:///agents?host=/run/postgresql&user=me@server",
        ],
    )
    def test_that_is_meant_is_accepted(self, url: str) -> None:
        check_store_url(url)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach redis://u:hunter2@h/0: no", "cannot reach redis://u:…@h/0: no"),
        ("a://b:hunter2@c and d://e:hunter2@f", "a://b:…@c and d://e:…@f"),
        ("http://host:80/a@b", "http://host:…@b"),
        ("mail me@host, see https://host", "mail me@host, see https://host"),
    ],
)
def test_an_error_shows_no_password_of_a_url(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert str(StoreError(text)) == shown
