"""Lists of sessions: their current status and their headings."""

from __future__ import annotations

from msgspec.structs import replace

import oakleaf
from oakleaf import assistant, user
from oakleaf.core.messages import Message
from oakleaf.log.session_list import count_sessions, session_page
from oakleaf.stores.base import Change, SessionQuery
from support.runtime import deterministic_runtime


class TestStatus:
    """`gone:…` is a holder whose process has ended, as far as this runtime knows."""

    def test_a_session_whose_runner_is_gone_is_listed_filtered_and_counted_as_interrupted(self) -> None:
        store = oakleaf.Store(oakleaf.open("memory:").backend, deterministic_runtime())
        holders = ["gone:1", "alive", "gone:2", None, "alive", "gone:3", "expired"]
        for n, holder in enumerate(holders):
            self.mark_running(store, f"ses_{n}", holder)
        store.start(session_id="ses_idle")

        def page_ids(status: str, limit: int) -> str:
            pages, query = [], SessionQuery(status=status, limit=limit)
            while True:
                page = session_page(store.backend, query, store.runtime)
                assert {row.status for row in page.sessions} <= {status}
                pages.append("".join(row.session_id[4:] for row in page.sessions))
                if page.next is None:
                    return " ".join(pages).strip()
                query = replace(query, before=page.next)

        assert [page_ids("interrupted", limit) for limit in (1, 3, 9)] == ["6 5 2 0", "652 0", "6520"]
        assert [page_ids("running", limit) for limit in (1, 2, 9)] == ["4 3 1", "43 1", "431"]
        counts = count_sessions(store.backend, SessionQuery(), "status", store.runtime)
        assert counts == {"idle": 1, "running": 3, "interrupted": 4}
        only = SessionQuery(status="interrupted")
        assert count_sessions(store.backend, only, "relation", store.runtime) == {"": 4}

    @staticmethod
    def mark_running(store: oakleaf.Store, session_id: str, holder: str | None) -> None:
        store.start(session_id=session_id)
        until = None if holder is None else 1 if holder == "expired" else 2**60
        columns = {"status": "running", "holder": holder and f"{holder}#run", "lease_until": until}
        store.backend.commit(Change(session_id=session_id, key="~", at=1, columns=columns))


class TestHeadings:
    def test_a_session_is_called_by_its_title_its_first_input_its_agent_or_its_id(
        self, store: oakleaf.Store
    ) -> None:
        store.start(session_id="ses_id")
        store.start("support", session_id="ses_agent")
        image = Message("user", (store.put_blob(b"image", "image/png"),))
        text = user("  Where\nis  it?  " + "x" * 500)
        for name, message, title in [
            ("ses_input", text, None),
            ("ses_title", text, "Order 41"),
            ("ses_image", image, None),
        ]:
            store.start(session_id=name, title=title).append([message, assistant("Here.")])
        headings = store.headings(store.sessions().sessions)
        assert headings.pop("ses_input").startswith("Where is it? xxx")
        assert headings == {
            "ses_id": "ses_id",
            "ses_agent": "support",
            "ses_title": "Order 41",
            "ses_image": "[image/png]",
        }
