"""Secrets never become durable, wherever they come from; ids are left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import (
    Evidence,
    Note,
    ScriptedModel,
    Session,
    Settings,
    ToolCall,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.codec import to_json
from oakleaf.core.drafts import Draft, build_entries
from oakleaf.core.redact import Redactor, may_contain_packed, pack_bytes, unpack_bytes
from oakleaf.core.turns import Cursor
from oakleaf.core.usage import Call
from oakleaf.errors import NotFound, SecretInName, SecretTooShort
from oakleaf.store import Store

SECRET = 'hunter2"\\ünd more'
KEY = "sk-ant-api03-" + "a1B2" * 12


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def leftovers(place: Path) -> list[str]:
    """Files beside the store that still hold a secret, in any way it could be written."""
    forms = [SECRET.encode(), SECRET.replace("\\", "\\\\").replace('"', '\\"').encode(), KEY.encode()]
    return [file.name for file in place.parent.iterdir() if any(form in file.read_bytes() for form in forms)]


def test_a_secret_is_in_no_table_index_or_log(place: Path) -> None:
    with oakleaf.open(place, secrets={"PASSWORD": SECRET}) as store:
        for secret in (SECRET, KEY):
            session = store.start(
                "a",
                [system(f"prompt {secret}")],
                title=f"t {secret}",
                state={"k": secret},
                spec={"s": secret},
            )
            session.append(
                [
                    user(f"q {secret}"),
                    assistant(f"a {secret}", ToolCall("c", "t", {"arg": [secret], secret: 1})),
                ]
            )
            session.append([tool_result("c", {"out": secret}, details={"d": secret}, state={"s": secret})])
            session.append(
                [assistant("done"), Note({"n": secret}), Settings(prompt=secret, limits={"l": secret})]
            )
            session.title(secret)
            session.rewind(to=2, summary=f"found {secret}")
            with pytest.raises(ValueError, match="error"), session.turn("again"):
                raise ValueError(f"error {secret}")
            session.interrupt()
            session.end("failed", f"because {secret}")
            assert session.verify() == []
        assert leftovers(place) == []
    assert leftovers(place) == []


def test_names_of_files_are_looked_at_too(place: Path) -> None:
    with oakleaf.open(place, secrets={"PASSWORD": SECRET}) as store:
        session = store.start("a")
        session.append([user("look", oakleaf.Attachment(b"x" * 9, "text/plain", f"{KEY}.txt"))])
        session.append([assistant("A long answer, long enough to be worth a summary of it." * 5)])
        session.append([user("go on")])
        session.append(
            [oakleaf.Compaction("short", 3, files_read=(f"/home/{KEY}",), files_changed=(SECRET,))]
        )
    assert leftovers(place) == []


def test_secrets_are_named_and_the_rest_stays() -> None:
    store = oakleaf.open("memory:", secrets={"PASSWORD": SECRET})
    session = store.start()
    session.append([user(f"before {SECRET} after {KEY}.")])
    assert session.path()[0].message.text == "before [redacted PASSWORD] after [redacted]."


def test_no_event_of_a_run_shows_a_secret() -> None:
    session = oakleaf.open("memory:", secrets={"PASSWORD": SECRET}).start()

    @oakleaf.tool(effect="read")
    def look(order: str) -> str:
        """Looks."""
        return f"found {order}"

    answers = [assistant(f"I take {KEY}", ToolCall("c", "look", {"order": SECRET})), f"done {SECRET}"]
    run = session.send_sync(f"use {SECRET} and {KEY}", model=ScriptedModel(answers), tools=[look], key="k")
    again = session.send_sync(f"use {SECRET} and {KEY}", model=ScriptedModel([]), key="k")
    for event in (*run.events, *again.events):
        assert SECRET not in str(event.data), event.type
        assert KEY not in str(event.data), event.type
    assert "session:turn_started" in {event.type for event in run.events}


class TestOptions:
    """Redacted, an option was sent to the provider as `[redacted …]`."""

    @pytest.mark.parametrize("options", [{"stop": [SECRET]}, {"stop": ["x", f"{KEY}."]}])
    def test_a_secret_in_an_option_is_refused_and_nothing_is_written(
        self, place: Path, options: dict[str, Any]
    ) -> None:
        with oakleaf.open(place, secrets={"PASSWORD": SECRET}) as store:
            session = store.start(model="own")
            model = ScriptedModel(["never"])
            for change in (
                lambda: session.set(options=options),
                lambda: session.fork(options=options),
                lambda: session.send_sync("hi", model=model, options=options),
            ):
                with pytest.raises(SecretInName, match="option") as refused:
                    change()
                assert KEY not in str(refused.value)
                assert SECRET not in str(refused.value)
            assert session.path() == []
            assert len(list(store.all_sessions())) == 1
            session.set(options={next(iter(options)): None})  # takes back what an import brought along


class TestNames:
    """Redacted, two ids became one: a conversation, an owner or a thread read another's history."""

    OTHER = "sk-ant-api03-" + "a1B2" * 11 + "Zzzz"

    @pytest.mark.parametrize(
        "options",
        [
            {"session_id": KEY},
            {"conversation_id": f"con-{KEY}"},
            {"owner": KEY},
            {"owner": SECRET},
            {"agent": SECRET},
            {"model": f"openai:{SECRET}"},
            {"trigger_type": KEY},
            {"trigger_id": KEY},
            {"parent_session": KEY},
            {"tags": {"user": KEY}},
            {"tags": {KEY: "x"}},
            {"tool_names": ["look", SECRET]},
        ],
    )
    def test_a_secret_in_a_name_is_refused_before_any_write(
        self, place: Path, options: dict[str, Any]
    ) -> None:
        with oakleaf.open(place, secrets={"PASSWORD": SECRET}) as store:
            with pytest.raises(SecretInName, match="redacted") as excinfo:
                store.start(**options)
            assert KEY not in str(excinfo.value)
            assert SECRET not in str(excinfo.value)
            assert list(store.all_sessions()) == []
        assert leftovers(place) == []

    def test_two_ids_never_become_one(self, store: Store) -> None:
        for name in (KEY, self.OTHER):
            with pytest.raises(SecretInName, match="conversation id"):
                store.latest_or_start(name)
            assert store.latest(name) is None
            assert store.sessions(owner=name).sessions == []
            with pytest.raises(NotFound):
                store.session(name)
        task, ordinary = f"task-{'550e8400-e29b-41d4-a716-446655440000'}", store.start(owner="AKIA-1")
        assert store.latest_or_start(task).row.conversation_id == task
        assert store.sessions(owner="AKIA-1").sessions[0].session_id == ordinary.session_id

    def test_a_secret_is_refused_in_every_name(self, store: Store) -> None:
        session = store.start()
        for refused in (
            lambda: session.tag(user=KEY),
            lambda: session.set(model=KEY),
            lambda: session.set(tools=[KEY]),
            lambda: session.append([user("q")], key=KEY),
            lambda: session.turn("q", key=KEY).__enter__(),
            lambda: session.fork(model=KEY),
            lambda: store.start_task(session, session_id=KEY),
            lambda: store.start_task(session, conversation_id=KEY),
        ):
            with pytest.raises(SecretInName):
                refused()
        assert session.path() == []
        assert KEY not in str(session.journal())

    def test_words_of_a_provider_are_redacted_not_refused(self, store: Store) -> None:
        """An answer that was paid for is not lost because of a name in it."""
        session = store.start()
        session.append([user("q")])
        draft = Draft(assistant(ToolCall("c", f"run_{KEY}", {})), model=f"m-{KEY}", finish=f"stop {KEY}")
        ledger = Call("k", 0, 1, 2, 1, model=f"m-{KEY}", provider=KEY)
        session.log.append([draft], calls=[ledger])
        entry, (call,) = session.path()[-1], session.model_calls()
        assert entry.message is not None
        assert entry.message.calls[0].name == "run_[redacted]"
        assert (entry.model, entry.finish) == ("m-[redacted]", "stop [redacted]")
        assert (call.model, call.provider) == ("m-[redacted]", "[redacted]")
        assert "run__redacted_" in str(session.messages("anthropic"))

    def test_bytes_of_attachments_and_ids_of_calls_stay(self, store: Store) -> None:
        session = store.start()
        session.append([user("q", oakleaf.Attachment(KEY.encode(), "text/plain"))])
        session.append([assistant(ToolCall(KEY, "look"))])
        session.append([tool_result(KEY, "r")])
        assert session.path()[0].message.media
        assert session.path()[1].message.calls[0].id == KEY
        assert session.verify() == []

    def test_a_secret_is_in_no_tag_title_trigger_or_policy(self, session: Session) -> None:
        with pytest.raises(SecretInName):
            session.tag(note=KEY)
        fork = session.fork(title=f"about {KEY}")
        with pytest.raises(SecretInName):
            session.turn("q", trigger=KEY)
        with session.turn("q", policy={"note": KEY}) as turn:
            turn.answer(assistant("a"))
        facts = [str(session.row), str(session.journal()), str(fork.row)]
        assert [KEY in text for text in facts] == [False, False, False]


def test_ids_names_and_evidence_are_left_alone() -> None:
    store = oakleaf.open("memory:", secrets=["toolu_01secretlooking"])
    session = store.start()
    evidence = Evidence("anthropic", {"1": {"signature": "toolu_01secretlooking"}})
    session.append([user("q")])
    session.log.append(
        [
            Draft(
                assistant("x toolu_01secretlooking", ToolCall("toolu_01secretlooking", "t")),
                evidence=evidence,
            )
        ]
    )
    session.append([tool_result("toolu_01secretlooking", "r")])
    answer = session.path()[1]
    assert answer.message.calls[0].id == "toolu_01secretlooking"
    assert answer.evidence == evidence
    assert answer.message.text == "x [redacted secret 1]"
    assert session.verify() == []


@pytest.mark.parametrize("value", ["hunter2", "4711", ""])
def test_a_secret_too_short_to_hide_is_refused(place: Path, value: str) -> None:
    """It was left in the log without a word: 4711 is in every second order number."""
    for secrets in ({"PIN": value}, [SECRET, value]):
        with pytest.raises(SecretTooShort, match="at least 8") as excinfo:
            oakleaf.open(place, secrets=secrets)
        assert ("PIN" if isinstance(secrets, dict) else "secret 2") in str(excinfo.value)
        assert not value or value not in str(excinfo.value)
    assert not place.exists()


def test_ordinary_text_is_left_alone() -> None:
    store = oakleaf.open("memory:")
    session = store.start()
    text = "sk-short, ghp_too_short, AKIA, short, a ghost; xoxo; risk-free and task-oriented"
    session.append([user(text)])
    assert session.path()[0].message.text == text


def test_a_word_that_ends_in_sk_and_an_id_is_no_key() -> None:
    uuid = "550e8400-e29b-41d4-a716-446655440000"
    redact = Redactor().redact_text
    assert redact(f"task-{uuid}, disk-{uuid}") == f"task-{uuid}, disk-{uuid}"
    assert redact(f"sk-{uuid}, key=sk-{uuid}\nsk-{uuid}") == "[redacted], key=[redacted]\n[redacted]"


def test_a_secret_within_another_leaves_nothing_of_that_in_clear() -> None:
    redactor = Redactor({"USER": "postgres", "URL": "db://postgres@host/name"})
    assert redactor.redact_text("db://postgres@host/name postgres") == "[redacted URL] [redacted USER]"


def test_secrets_of_tool_results_are_hidden_in_the_loop(place: Path) -> None:
    @oakleaf.tool(effect="read")
    def leak() -> str:
        return f"the key is {KEY}"

    @oakleaf.tool(effect="read")
    def burst() -> str:
        raise RuntimeError(f"cannot log in with {SECRET}")

    with oakleaf.open(place, secrets=[SECRET]) as store:
        session = store.start()
        calls = assistant(ToolCall("a", "leak"), ToolCall("b", "burst"))

        async def main() -> list[oakleaf.Event]:
            model = ScriptedModel([calls, f"So it is {SECRET}"])
            return [event async for event in session.send("q", model=model, tools=[leak, burst])]

        events = asyncio.run(main())
        answers = [event.data["text"] for event in events if event.type == "session:answer"]
        assert answers == ["", "So it is [redacted secret 1]"]
        assert leftovers(place) == []


def test_secrets_of_the_environment_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "correct horse battery staple")
    monkeypatch.setenv("DB_PASSWORD", "postgres")
    monkeypatch.setenv("MONKEY", "a perfectly ordinary value")
    session = oakleaf.open("memory:").start()
    session.append([user("correct horse battery staple; postgres; a perfectly ordinary value")])
    assert session.path()[0].message.text == "[redacted SHOP_API_KEY]; postgres; a perfectly ordinary value"


def test_a_secret_in_pieces_is_hidden_in_the_stream() -> None:
    from oakleaf.models.base import Delta
    from oakleaf.wire import Answer

    class Pieces(ScriptedModel):
        async def stream(self, request):
            for piece in ("the key is ", KEY[:20], KEY[20:], " all", " right"):
                yield Delta(piece)
            yield Answer(assistant(f"the key is {KEY} all right"), None, None, "p", "m", "stop")

    session = oakleaf.open("memory:").start()
    events = session.send_sync("q", model=Pieces([])).events
    live = "".join(event.data["text"] for event in events if event.type == "session:delta")
    assert live == "the key is [redacted] all right"


SHAPES = [
    KEY,
    "sk-proj-" + "a_B-" * 10,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a_B2" * 10,
    "AKIA" + "A1B2" * 4,
    "AIza" + "a_B-2" * 7,
    "xoxb-" + "a1B-" * 5,
    "-----BEGIN RSA PRIVATE KEY-----\na1B2\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_secrets_of_a_text_are_seen_in_bytes(shape: str) -> None:
    """Nothing is walked unless its bytes say so; so they must say so wherever a shape may stand."""
    redactor = Redactor()
    for around in ("", "\n", '"', "\\", "ü", "\u2028"):
        text = f"before{around}{shape}{around}"
        assert shape not in redactor.redact_text(text)
        assert redactor.may_contain_secret(to_json({"a": [text]}, "test"))
        assert redactor.may_contain_secret(to_json({text: 1}, "test"))
        batch = build_entries(Cursor(), [Draft(user(text))], 1, redactor=redactor)
        assert to_json(shape, "test")[1:-1] not in batch.entries[0].body


@pytest.mark.parametrize(
    "text", ["a task-force of ghosts", "ask-anyone", "gh_ and ghp_", "AKIA", "BEGIN PRIVATE KEY"]
)
def test_lookalikes_are_not_walked(text: str) -> None:
    assert not Redactor({"NAME": "a secret of ours"}).may_contain_secret(to_json(text, "test"))


@pytest.mark.parametrize("shape", [*SHAPES, "a sécret of ours"])
def test_packed_bytes_are_masked_and_stay_as_many(shape: str) -> None:
    """Another program's format counts them."""
    redactor = Redactor({"NAME": "a sécret of ours"})
    data = b"\x00\xff" + shape.encode() + b"\xfe" * 30
    packed = pack_bytes(data)
    assert not redactor.may_contain_secret(to_json(packed, "test"))
    assert may_contain_packed(to_json({"a": [packed]}, "test"))
    masked = unpack_bytes(redactor.redact_json({"a": [packed]})["a"][0])
    assert (len(masked), masked[:2], masked[-30:]) == (len(data), data[:2], data[-30:])
    assert masked[2:12] == b"[redacted]"
    assert shape.encode()[10:] not in masked


@pytest.mark.parametrize("text", ["Yes.", "Done.", "configurationpages.toml.", pack_bytes(b"harmless" * 9)])
def test_text_without_secrets_stays(text: str) -> None:
    assert Redactor({"NAME": "hunter2hunter2"}).redact_text(text) == text


def test_a_secret_that_could_be_packed_bytes_is_masked_in_clear() -> None:
    assert Redactor({"NAME": "hunter2hunter2hu"}).redact_text("hunter2hunter2hu.") == "[redacted NAME]."


def test_a_token_for_a_server_is_refused_as_an_option() -> None:
    """Redacted, the next call would send another value."""
    options = {"anthropic.mcp_servers": [{"url": "https://x", "authorization_token": "maples-and-oaks"}]}
    with oakleaf.open("memory:") as store:
        session = store.start()
        with pytest.raises(SecretInName, match="mcp_servers"):
            session.send_sync("Hi", model=ScriptedModel(["Hi"]), options=options)
        session.append([Settings(options=options)])
        settings = session.path()[-1].payload
        assert isinstance(settings, Settings)
        assert settings.options == {
            "anthropic.mcp_servers": [{"url": "https://x", "authorization_token": "[redacted]"}]
        }
