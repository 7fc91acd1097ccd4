"""Open work of an import: calls and queued inputs from elsewhere, to be accepted before a run here.

They run once somebody here has accepted them. The acceptance is a fact of this store, so that it is asked for once, and
one inside a bundle accepts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oakleaf.agent.call_status import read_call_status
from oakleaf.agent.task_line import is_task_of
from oakleaf.agent.tools.tool import Tool
from oakleaf.core.codec import decode
from oakleaf.core.facts import ImportAccepted
from oakleaf.core.messages import Message
from oakleaf.errors import ImportedCall, ImportedInput, ImportNotAccepted
from oakleaf.log.imports import is_accepted
from oakleaf.log.log import Log


def require_accepted(
    log: Log, tools: Mapping[str, Tool] | None, *, calls: bool = True, inputs: bool = True
) -> None:
    """Raise `ImportNotAccepted` with all unaccepted calls and inputs of this session and the tasks below.

    Without `tools` their effects are not known, and every call counts. `calls=False` if the open calls will be closed.
    """
    open_calls = list(_calls(log, tools)) if calls else []
    queued = [queued for each in _family(log) for queued in _inputs(each)] if inputs else []
    if open_calls or queued:
        raise ImportNotAccepted(log.session_id, open_calls, queued)


def accept_import(log: Log) -> None:
    """Record the permission to run the imported work of this session and the tasks below. Record nothing if
    the work is accepted already or nothing was imported."""
    for each in _family(log):
        imported = each.store.session(each.session_id).imported_facts
        if imported and not is_accepted(each):
            each.record(ImportAccepted(imported))


def _calls(log: Log, tools: Mapping[str, Tool] | None) -> Iterator[ImportedCall]:
    for each in _family(log):
        # Which tools a task is given, only the tool that starts it knows.
        known = tools if each is log else None
        for call in read_call_status(each).needing_acceptance(each.cursor.open_calls, known):
            yield ImportedCall(each.session_id, call.call.id, call.call.name, call.call.arguments)


def _inputs(log: Log) -> Iterator[ImportedInput]:
    queued = [queued for queued in log.store.inbox(log.session_id) if queued.is_imported]
    if not queued or is_accepted(log):
        return
    for each in queued:
        message = decode("message", each.body)
        assert isinstance(message, Message)
        yield ImportedInput(log.session_id, message.text)


def _family(log: Log) -> Iterator[Log]:
    """Yield a session and the tasks of open calls, each once: a forged ring of tasks must end too."""
    known, waiting = {log.session_id}, [log]
    while waiting:
        parent = waiting.pop(0)
        yield parent
        for task_id in read_call_status(parent).tasks:
            row = log.store.find_session(task_id)
            if task_id not in known and row is not None and is_task_of(row, parent.session_id):
                known.add(task_id)
                waiting.append(Log(log.store, row, log.runtime))
