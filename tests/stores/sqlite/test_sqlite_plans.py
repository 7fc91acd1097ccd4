"""In a store with a hundred times the sessions nothing that people ask for does more work.

SQLite counts the steps of each statement, and the rows it read because no index fitted.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import oakleaf
from oakleaf.stores.sqlite.search_index import MERGED_PAGES, merge_segments, tenant_words
from support.filled_store import READS, write_rare_sessions, write_sessions, write_small_space
from support.statement_steps import Steps

COPIES = 100
KNOWN = {"purging"}
"""FTS5 keeps the words of what was deleted until it merges all segments, so a purge rewrites the index."""
COLUMNS = (
    "select group_concat(name) from pragma_table_info('session') where name not in ('number', 'id', 'branch')"
)
# Copies what the store itself wrote, under other numbers.
COPY = """
insert into session (number, id, branch, {columns}) select number + {step}, id || '_{step}', branch + {step}, {columns} from session where number <= {most};
insert into session_detail select session_number + {step}, spec, policy, workspace, state from session_detail where session_number <= {most};
insert into branch select id + {step}, session_number + {step}, parent + {step}, parent_seq from branch where id <= {most};
insert into entry select id + ({step} << 32), turn, step, kind, role, internal, model, finish, entry_id, at, evidence, body
    from entry where id >> 32 <= {most};
insert into usage select id + ({step} << 32), call_id, branch + {step}, after_seq, answer_seq, purpose, bucket, provider, model,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_microcents, price_version, failed, at
    from usage where id >> 32 <= {most};
insert into journal select id + ({step} << 32), kind, key, branch + {step}, first_seq, last_seq, data, at from journal where id >> 32 <= {most};
insert into search_entry select id + ({step} << 32), session_number + {step}, at from search_entry where session_number <= {most};
insert into search (rowid, text, tool, model, marker) select id + ({step} << 32), 'question about herring', '', '', {mark} from search_entry
    where session_number <= {most};
insert into search_progress select session_number + {step}, facts, title from search_progress where session_number <= {most};
"""
LONG_JOURNAL = """
with recursive fact (n) as (select 1 union all select n + 1 from fact where n < ?)
insert into journal (id, kind, at) select (number << 32) + 1000 + n, 'appended', 0 from session, fact where session.id = 'ses_rare'
"""
LONG_LEDGER = """
with recursive call (n) as (select 1 union all select n + 1 from call where n < ?)
insert into usage (id, call_id, branch, after_seq, answer_seq, failed, at)
select (number << 32) + 1 + n, 'call-' || n, branch, 2 * n - 1, 2 * n, 0, 0 from session, call where session.id = 'ses_rare'
"""


def fill(path: Path, copies: int) -> str:
    with oakleaf.open(path, synchronous="normal") as store:
        write_sessions(store)
        connection = apsw.Connection(str(path))
        most = connection.execute("select max(id) from branch").get
        columns = connection.execute(COLUMNS).get
        mark = repr("role_user kind_message " + " ".join(tenant_words("default", None)))
        with connection:
            for copy in range(1, copies + 1):
                connection.execute(COPY.format(step=copy * 1_000, most=most, columns=columns, mark=mark))
            while merge_segments(connection, MERGED_PAGES):  # as the store does after so many rows
                pass
        write_rare_sessions(store)
        connection.execute(LONG_JOURNAL, (40 * copies,))
        connection.execute(LONG_LEDGER, (400 + 40 * copies,))
        connection.close()
    write_small_space(str(path))
    return str(path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("plans")
    return fill(folder / "few.db", 1), fill(folder / "many.db", COPIES)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.mark.parametrize("name", [name for name in READS if name not in KNOWN])
def test_nothing_does_more_work_among_many_sessions(name: str, stores: tuple[str, str], steps: Steps) -> None:
    space, work = READS[name]
    counts = []
    for path in stores:
        with oakleaf.open(path, space=space) as store:
            work(store)
        counts.append(steps.steps)
        steps.steps = 0
    assert not steps.scans
    few, many = counts
    assert many <= 1.5 * few + 1_500, (few, many)
