"""ChatGPT exports: the tree of a conversation, runs of nodes, files of the export."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path

import pytest

from oakleaf.core.messages import Media, Reasoning, Text, ToolCall
from oakleaf.errors import InvalidSource
from oakleaf.store import Store
from support.import_sources import entries_of, import_all, import_one, memory_store, message_texts, store
from support.tool_sources import Record, chatgpt, stored_counts, stored_messages
from support.tool_sources.chatgpt import SAMPLE, conversation, node, text

__all__ = ["store"]


class TestATree:
    def test_becomes_branches_and_the_current_node_is_the_leaf(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "chatgpt", chatgpt.write(tmp_path, SAMPLE))
        session = store.session("chatgpt-68a1-shop")
        assert message_texts(session) == [
            *("I run a shop.Be brief.", "What is on this picture?", "A receipt over 12 Euro."),
            *("Sum it with Python.", "", "", "It is 12."),
        ]
        assert len(session.branches()) == 3

    def test_thoughts_and_text_are_one_answer_and_code_is_a_call(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "chatgpt", chatgpt.write(tmp_path, SAMPLE))
        path = entries_of(store.session("chatgpt-68a1-shop"))
        assert path[2].message is not None
        assert path[2].message.parts == (Reasoning("A receipt."), Text("A receipt over 12 Euro."))
        assert (path[2].model, path[2].finish) == ("gpt-5", "stop")
        assert path[4].message is not None
        assert path[4].message.calls == (ToolCall("c2", "python", {"input": "print(5 + 7)"}),)
        assert path[5].message is not None
        assert path[5].message.results[0].content == (Text("12"),)

    def test_an_answer_that_forks_after_its_thoughts_repeats_them(self, store: Store, tmp_path: Path) -> None:
        thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "Hm."}]}
        nodes = [
            node("q", None, "user", text("Why?")),
            node("t", "q", "assistant", thoughts, 1),
            node("a", "t", "assistant", text("So."), 2),
            node("b", "t", "assistant", text("Because."), 3),
        ]
        source = chatgpt.write(tmp_path, [conversation("c", "Why", nodes, "a")])
        session, _ = import_one(store, "chatgpt", source)
        answers = [each.parts for each in stored_messages(store, session.session_id)[1:]]
        assert answers == [
            (Reasoning("Hm."), Text("So.")),
            (Reasoning("Hm."), Text("Because.")),
        ]

    def test_a_later_export_adds_only_what_is_new(self, tmp_path: Path) -> None:
        nodes = list(SAMPLE[0]["mapping"].values())
        with memory_store() as growing, memory_store() as whole:
            for end in range(2, len(nodes) + 1):
                part = [{**copy.deepcopy(each), "children": []} for each in nodes[:end]]
                record = conversation("68a1-shop", "The shop", part, part[-1]["id"])
                for report in growing.import_from("chatgpt", str(chatgpt.write(tmp_path, [record]))):
                    assert report.error in (None, "it contains no messages; nothing was imported")
            import_all(whole, "chatgpt", chatgpt.write(tmp_path, SAMPLE[:1]))
            assert set(stored_counts(whole).texts) <= set(stored_counts(growing).texts)
            assert message_texts(growing.session("chatgpt-68a1-shop")) == message_texts(
                whole.session("chatgpt-68a1-shop")
            )


class TestFiles:
    def test_an_image_of_the_export_is_a_blob(self, store: Store, tmp_path: Path) -> None:
        import_all(store, "chatgpt", chatgpt.write(tmp_path, SAMPLE))
        message = entries_of(store.session("chatgpt-68a1-shop"))[1].message
        assert message is not None
        (media,) = message.media
        assert isinstance(media, Media)
        assert (media.mime, store.blob(media)) == ("image/png", chatgpt.PNG)

    def test_one_that_is_missing_is_named_and_counted(self, store: Store, tmp_path: Path) -> None:
        upload = {"id": "file-0123456789", "name": "prices.csv", "mime_type": "text/csv"}
        nodes = [node("q", None, "user", text("Sum it."), metadata={"attachments": [upload]})]
        session, report = import_one(
            store, "chatgpt", chatgpt.write(tmp_path, [conversation("c", "t", nodes, "q")])
        )
        assert message_texts(session) == ["Sum it.[file prices.csv: not in the export]"]
        assert report.losses["a file that is not in the export"].examples == ["prices.csv"]

    def test_an_archive_and_a_numbered_series_give_the_same(self, tmp_path: Path) -> None:
        folder = chatgpt.write(tmp_path / "in", SAMPLE)
        with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
            for number, record in enumerate(SAMPLE):
                archive.writestr(f"x/conversations-{number:03}.json", json.dumps([record]))
            archive.write(folder / f"{chatgpt.FILE}-receipt.png")
        with memory_store() as first, memory_store() as second:
            import_all(first, "chatgpt", folder)
            import_all(second, "chatgpt", tmp_path / "export.zip")
            assert stored_counts(first) == stored_counts(second)

    @pytest.mark.parametrize("body", [b"{", b"3", b"PK\x03\x04 and nothing"])
    def test_one_that_is_no_export_is_refused_with_a_reason(
        self, store: Store, tmp_path: Path, body: bytes
    ) -> None:
        (tmp_path / "conversations.json").write_bytes(body)
        with pytest.raises(InvalidSource):
            import_all(store, "chatgpt", tmp_path / "conversations.json")

    def test_a_conversation_of_another_shape_is_counted_and_the_next_is_imported(
        self, store: Store, tmp_path: Path
    ) -> None:
        odd: list[Record] = [{"title": "no messages"}, SAMPLE[1]]
        _, report = import_one(store, "chatgpt", chatgpt.write(tmp_path, odd))
        assert report.losses["a conversation without messages"].count == 1
