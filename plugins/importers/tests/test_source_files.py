"""What a source names is data: no file outside of it is read, none that its tool did not write, and none without an end."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import closing
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import apsw
import pytest

from oakleaf.errors import InvalidArgument, InvalidSource
from oakleaf.store import Store
from oakleaf_importers.formats.source_files import LIMIT_VARIABLE, LINK_OUT
from oakleaf_importers.watch import Watch, WatchedFolder
from support import tool_sources
from support.import_sources import import_all, import_one, memory_store, message_texts, store
from support.tool_sources import ToolSource, chatgpt, stored_messages
from support.tool_sources.chatgpt import conversation, node, text

__all__ = ["store"]

pytestmark = pytest.mark.attack

SECRET = "-----BEGIN OPENSSH PRIVATE KEY----- stolen"
SOURCES: list[ToolSource] = [
    import_module(f"support.tool_sources.{module.name}").SOURCE
    for module in iter_modules(tool_sources.__path__)
]
FOLDERS = [source for source in SOURCES if source.tool not in ("redis",)]
POINTERS = [
    *("file-service://id_rsa", "file-service://.ssh/id_rsa", "file-service://../id_rsa", "sediment://secret"),
    *("/etc/passwd", "file:///etc/passwd", "file-service://conversations", "file-service://file-", "file_"),
    "file-service://file-0123456789abcdef0123/../../id_rsa",
]


def pointing(pointer: str) -> list[dict[str, object]]:
    """Return a conversation that names a file in each way an export can."""
    asset = {"content_type": "image_asset_pointer", "asset_pointer": pointer}
    uploads = {"attachments": [{"id": pointer.rpartition("//")[2], "name": "x", "mime_type": "text/plain"}]}
    plot = {"aggregate_result": {"messages": [{"message_type": "image", "image_url": pointer}]}}
    code = {"content_type": "code", "text": "plot()"}
    nodes = [
        node("a", None, "user", text("See", asset)),
        node("b", "a", "user", text("See"), metadata=uploads),
        node("c", "b", "assistant", code, metadata=plot),
    ]
    return [conversation("c", "t", nodes, "c")]


def assert_not_taken(store: Store) -> None:
    for row in store.all_sessions():
        for message in stored_messages(store, row.session_id):
            assert SECRET not in repr(message)
            for media in message.media:
                assert SECRET.encode() not in store.blob(media)


class TestAnExport:
    @pytest.mark.parametrize("pointer", POINTERS)
    @pytest.mark.parametrize("shape", ["folder", "file", "archive"])
    def test_takes_no_file_in_that_its_naming_rule_does_not_cover(
        self, store: Store, tmp_path: Path, pointer: str, shape: str
    ) -> None:
        place = tmp_path / "home"
        place.mkdir()
        (place / "conversations.json").write_text(json.dumps(pointing(pointer)))
        for name in ("id_rsa", ".ssh/id_rsa", "a/b/secret.txt", "file-notes.txt", "file_", "file-"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(SECRET)
        (tmp_path / "id_rsa").write_text(SECRET)
        source = place
        if shape == "file":
            source = place / "conversations.json"
        elif shape == "archive":
            source = tmp_path / "export.zip"
            with zipfile.ZipFile(source, "w") as archive:
                for path in sorted(place.rglob("*")):
                    archive.write(path, path.relative_to(place))
        _, report = import_one(store, "chatgpt", source)
        assert_not_taken(store)
        assert report.losses["a file that is not in the export"].count >= 2

    @pytest.mark.parametrize("name", [f"{chatgpt.FILE}.txt", f".hidden/{chatgpt.FILE}.txt"])
    def test_takes_no_hidden_file_and_follows_no_link_out_of_its_folder(
        self, store: Store, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / "id_rsa").write_text(SECRET)
        place = tmp_path / "export"
        (place / name).parent.mkdir(parents=True)
        (place / "conversations.json").write_text(json.dumps(pointing(f"file-service://{chatgpt.FILE}")))
        if name.startswith("."):
            (place / name).write_text(SECRET)
        else:
            (place / name).symlink_to(tmp_path / "id_rsa")
        _, report = import_one(store, "chatgpt", place)
        assert_not_taken(store)
        assert (LINK_OUT in report.losses) is not name.startswith(".")

    def test_in_an_archive_has_no_hidden_files_and_no_links(self, store: Store, tmp_path: Path) -> None:
        link = zipfile.ZipInfo(f"{chatgpt.FILE}.txt")
        link.external_attr = 0o120777 << 16
        with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
            archive.writestr("conversations.json", json.dumps(pointing(f"file-service://{chatgpt.FILE}")))
            archive.writestr(link, SECRET)
            archive.writestr(f".x/{chatgpt.FILE}.txt", SECRET)
            archive.writestr(f"../{chatgpt.FILE}.txt", SECRET)
        import_one(store, "chatgpt", tmp_path / "e.zip")
        assert_not_taken(store)


class TestAFolder:
    @pytest.mark.parametrize("source", FOLDERS, ids=lambda source: source.tool)
    def test_of_links_to_the_sessions_of_its_reader_gives_none(
        self, source: ToolSource, tmp_path: Path
    ) -> None:
        own = Path(source.write(tmp_path / "own", source.sample))
        base = tmp_path / "own"
        strange = tmp_path / "strange"
        for path in base.rglob("*"):
            if path.is_file():
                link = strange / path.relative_to(base)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        place = strange / own.relative_to(base) if own != base else strange
        if place.is_file():
            place = place.parent
        with memory_store() as store:
            try:
                reports = list(store.import_from(source.tool, str(place)))
            except InvalidSource:
                reports = []
            assert list(store.all_sessions()) == []
            assert all(not report.entries for report in reports)

    def test_is_watched_without_its_links_out(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "own.jsonl").write_text('{"role": "user", "content": "mine"}\n')
        strange = tmp_path / "strange"
        strange.mkdir()
        (strange / "a.jsonl").symlink_to(tmp_path / "own.jsonl")
        (strange / "b.jsonl").write_text('{"role": "user", "content": "theirs"}\n')
        watch = Watch(store, [WatchedFolder("chat", strange)])
        assert [change.source for change in watch.scan()] == [str(strange / "b.jsonl")]

    def test_of_a_claude_code_session_takes_no_linked_sub_agent_in(
        self, store: Store, tmp_path: Path
    ) -> None:
        line = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "hi"}, "sessionId": "s"}
        stolen = {**line, "message": {"role": "user", "content": SECRET}, "isSidechain": True}
        (tmp_path / "mine.jsonl").write_text(json.dumps(stolen))
        place = tmp_path / "p"
        (place / "s" / "subagents").mkdir(parents=True)
        (place / "s.jsonl").write_text(json.dumps(line))
        for link in ("agent-x.jsonl", "s/subagents/agent-y.jsonl"):
            (place / link).symlink_to(tmp_path / "mine.jsonl")
        _, report = import_one(store, "claude-code", place / "s.jsonl")
        assert_not_taken(store)
        assert report.losses[LINK_OUT].count == 2

    def test_of_opencode_reads_no_messages_of_another_name(self, store: Store, tmp_path: Path) -> None:
        storage = tmp_path / "storage"
        for folder in ("session/p", "message", "part/x"):
            (storage / folder).mkdir(parents=True)
        (storage / "x.json").write_text(json.dumps({"id": "x", "role": "user"}))
        (storage / "part/x/1.json").write_text(json.dumps({"type": "text", "text": SECRET}))
        (storage / "session/p/s.json").write_text(json.dumps({"id": ".."}))
        reports = import_all(store, "opencode", tmp_path)
        assert_not_taken(store)
        assert [loss for report in reports for loss in report.losses] == ["a session file without an id"]


class TestALimit:
    def test_of_an_archive_counts_what_is_unpacked_and_not_what_its_headers_say(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(LIMIT_VARIABLE, "1000000")
        with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("conversations.json", b"[" + b" " * 5_000_000 + b"]")
        for tool in ("chatgpt", "claude-ai"):
            with pytest.raises(InvalidSource, match=rf"more than 1,000,000 bytes; set {LIMIT_VARIABLE}"):
                import_all(store, tool, tmp_path / "bomb.zip")

    def test_of_an_archive_holds_for_all_its_members_together(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(LIMIT_VARIABLE, "1000000")
        with zipfile.ZipFile(tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("header.json", json.dumps({"eval": {"eval_id": "e"}}))
            for number in range(20):
                archive.writestr(f"samples/{number}.json", json.dumps({"id": "x" * 100_000}))
        with pytest.raises(InvalidSource, match=LIMIT_VARIABLE):
            import_all(store, "inspect", tmp_path / "log.eval")

    def test_of_an_archive_holds_for_the_number_of_its_files(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("oakleaf_importers.formats.archives.MAX_MEMBERS", 10)
        with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
            for number in range(11):
                archive.writestr(f"conversations-{number}.json", "[]")
        with pytest.raises(InvalidSource, match="more than 10 files; unpack it"):
            import_all(store, "chatgpt", tmp_path / "many.zip")

    def test_of_a_file_is_checked_before_it_is_read(self, store: Store, tmp_path: Path) -> None:
        for name in ("rollout-1.jsonl", "conversations.json"):
            with (tmp_path / name).open("wb") as file:
                file.truncate(1 << 40)
        (report,) = import_all(store, "codex", tmp_path / "rollout-1.jsonl")
        assert any(LIMIT_VARIABLE in loss for loss in report.losses)
        with pytest.raises(InvalidSource, match=LIMIT_VARIABLE):
            import_all(store, "chatgpt", tmp_path / "conversations.json")

    def test_is_raised_on_purpose(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a.jsonl").write_text('{"role": "user", "content": "hello"}\n')
        monkeypatch.setenv(LIMIT_VARIABLE, "10")
        (report,) = import_all(store, "chat", tmp_path / "a.jsonl")
        assert report.entries == 0
        monkeypatch.setenv(LIMIT_VARIABLE, "100")
        session, _ = import_one(store, "chat", tmp_path / "a.jsonl")
        assert message_texts(session) == ["hello"]

    @pytest.mark.parametrize("value", ["lots", "-1", "0", "1e9", "٣"])
    def test_that_is_no_number_is_refused(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        (tmp_path / "a.jsonl").write_text('{"role": "user", "content": "hello"}\n')
        monkeypatch.setenv(LIMIT_VARIABLE, value)
        with pytest.raises(InvalidArgument, match=LIMIT_VARIABLE):
            import_all(store, "chat", tmp_path / "a.jsonl")


ENDLESS_VIEW = (
    "create view {table} as with recursive n(i) as (select 1 union all select i + 1 from n)"
    " select i as id, i as thread_id, i as session_id, '' as checkpoint_ns from n"
)
TABLES = {
    "adk": ("events", "sessions"),
    "goose": ("sessions",),
    "langgraph": ("checkpoints",),
    "llm": ("threads", "responses"),
    "openai-agents": ("agent_messages", "agent_sessions"),
    "opencode": ("session", "message"),
}


class TestADatabase:
    @pytest.mark.parametrize("tool", TABLES)
    def test_with_endless_views_in_place_of_tables_has_none_of_them(
        self, store: Store, tmp_path: Path, tool: str
    ) -> None:
        path = tmp_path / "s.db"
        with closing(apsw.Connection(str(path))) as connection:
            for table in TABLES[tool]:
                connection.execute(ENDLESS_VIEW.format(table=table))
        with pytest.raises(InvalidSource, match="no table"):
            import_all(store, tool, path)

    def test_with_virtual_tables_has_none_of_them(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("create virtual table checkpoints using fts5(thread_id)")
        with pytest.raises(InvalidSource, match="no table"):
            import_all(store, "langgraph", path)

    def test_whose_rows_are_larger_than_the_file_is_left(self, store: Store, tmp_path: Path) -> None:
        path = tmp_path / "s.db"
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute(
                "create table checkpoints(thread_id text, checkpoint_ns text,"
                " checkpoint blob generated always as (zeroblob(1000000)))"
            )
            connection.execute(
                "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)"
                " insert into checkpoints(thread_id) select i from n"
            )
        with pytest.raises(InvalidSource, match="more than the file can hold"):
            import_all(store, "langgraph", path)

    def test_whose_pages_form_a_tree_without_an_end_is_left(self, store: Store, tmp_path: Path) -> None:
        """Every page names the next one a hundred times: 100 to the power of the number of pages rows."""
        path = tmp_path / "s.db"
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("pragma page_size = 1024")
            connection.execute("create table checkpoints(thread_id text, checkpoint_ns text)")
            connection.execute(
                "with recursive n(i) as (select 1 union all select i + 1 from n where i < 4000)"
                " insert into checkpoints select 't', '' from n"
            )
            ((root,),) = connection.execute("select rootpage from sqlite_schema").fetchall()
        _repeat_children(path, 1024, root)
        with pytest.raises(InvalidSource):
            import_all(store, "langgraph", path)


def _repeat_children(path: Path, size: int, root: int) -> None:
    """Let every cell of six interior pages, one below the other, name the next page."""
    data = bytearray(path.read_bytes())
    pages = len(data) // size
    chain = [root, *range(pages - 6, pages)]
    for page, child in zip(chain, [*chain[1:], 0], strict=True):
        start = (page - 1) * size
        if not child:
            break
        cells = 100
        content = size - cells * 7
        data[start : start + size] = bytes(size)
        data[start] = 5
        data[start + 3 : start + 5] = cells.to_bytes(2, "big")
        data[start + 5 : start + 7] = content.to_bytes(2, "big")
        data[start + 8 : start + 12] = child.to_bytes(4, "big")
        for cell in range(cells):
            at = content + cell * 7
            data[start + 12 + 2 * cell : start + 14 + 2 * cell] = at.to_bytes(2, "big")
            data[start + at : start + at + 5] = child.to_bytes(4, "big") + bytes([cell + 1])
    path.write_bytes(bytes(data))


def test_a_pipe_in_a_folder_is_not_waited_for(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.settings.json")
    (tmp_path / "x.jsonl").write_text('{"type": "message", "message": {"role": "user", "content": "hi"}}\n')
    session, _ = import_one(store, "droid", tmp_path / "x.jsonl")
    assert message_texts(session) == ["hi"]
