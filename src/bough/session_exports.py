"""The verbs of a session that write it out for people and tools. What they need is loaded when first used.

HTML holds the whole session, as a bundle does, and spans tell all it did itself; the others tell the path to where the
handle stands. None ever holds evidence. All are redacted by what the store's opener named as secrets and by what looks
like one; `redact=False` tells the log as it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from .core.redact import Redactor
from .errors import InvalidArgument
from .log.log import Log

if TYPE_CHECKING:
    from .agent.tools.tool import Tool
    from .core.entries import Entry
    from .exchange.bundle.transfer import PathOrFile
    from .exchange.bundle.write import OnProgress
    from .exchange.exports.finetune import FineTuning
    from .exchange.exports.html import HtmlExportResult
    from .stores.base import SessionRow


class Exports:
    """Part of a `Session`: html, markdown, jsonl, finetune, workflow, inspect and spans."""

    log: Log

    def html(
        self,
        to: PathOrFile,
        *,
        blobs: bool = False,
        children: bool = True,
        redact: bool = True,
        progress: OnProgress | None = None,
    ) -> HtmlExportResult:
        """One file that opens from disk without network: the viewer, and the bundle `export` would write.

        `blobs` wants `redact=False`, for the bytes of blobs cannot be looked through.
        """
        from .exchange.exports.html import html

        log, how = self.log, {"blobs": blobs, "children": children, "redact": redact}
        return html(log.store, log.runtime, log.session_id, to, **how, progress=progress)

    def markdown(self, *, lines: int = 20, redact: bool = True) -> Iterator[str]:
        """For reading and sharing, a text per entry; results are cut to so many lines. Content in it is inert."""
        from .core.usage import total
        from .exchange.exports.markdown import markdown
        from .log.ledger import model_calls

        if lines < 1:
            raise InvalidArgument("lines", lines, "a number from 1")
        totals = total(model_calls(self.log, "path", None))
        return markdown(self._row(redact), self._entries(0, redact), totals, lines)

    def jsonl(
        self, what: Literal["path", "all", "events"] = "path", *, since: int = 0, redact: bool = True
    ) -> Iterator[str]:
        """One JSON object per line: the entries of the path, all of its own branches, or the path as events."""
        from .exchange.exports.jsonl import entry_lines, event_lines
        from .exchange.exports.path_reader import redact_entries

        if what == "all":
            stored = self.log.store.entries(self.log.session_id)
            own = (one.entry.to_entry(one.branch) for one in stored if one.entry.seq > since)
            return entry_lines(self.log.session_id, redact_entries(own, self._redactor(redact)))
        if what not in ("path", "events"):
            raise InvalidArgument("what", what, "path, all or events")
        lines = event_lines if what == "events" else entry_lines
        return lines(self.log.session_id, self._entries(since, redact))

    def finetune(self, *, tools: Iterable[Tool | Callable[..., Any]] = (), redact: bool = True) -> FineTuning:
        """One line of OpenAI's chat fine-tuning format: the completed turns of the path, and what was skipped."""
        from .exchange.exports.finetune import finetune

        return finetune(list(self._entries(0, redact)), tools)

    def workflow(self, *, redact: bool = True) -> str:
        """A `.relavium.yaml` scaffold: an agent node per completed turn, the transcript in its metadata."""
        from .exchange.exports.workflow import frozen_agent, workflow
        from .exchange.exports.yaml import to_yaml

        agent = frozen_agent(self.log)
        redactor = self._redactor(redact)
        agent = agent if redactor is None else redactor.redact_json(agent)
        return to_yaml(workflow(self._row(redact), list(self._entries(0, redact)), agent))

    def inspect(self, *, redact: bool = True) -> str:
        """An evaluation log of Inspect, as JSON: the path as one sample, to look at and to score."""
        import msgspec

        from .agent.prompt_window import tree_message_limits
        from .exchange.exports.inspect.log import inspect_log, until
        from .exchange.exports.timeline import build_timeline
        from .log.ledger import model_calls

        log, row, path = self.log, self._row(redact), list(self._entries(0, redact))
        on_path = model_calls(log, "path", None)
        told = build_timeline(log.store.journal(log.session_id), on_path, self._redactor(redact))
        if row.leaf != log.leaf:
            row, told = until(path, row, told)
        return (
            msgspec.json.encode(inspect_log(row, path, on_path, told, tree_message_limits(log))).decode()
            + "\n"
        )

    def spans(self, *, content: bool = False, children: bool = True, redact: bool = True) -> Iterator[str]:
        """Spans of OpenTelemetry, as lines of OTLP JSON: all the session did itself, with its tasks.

        Each line is a request that a collector takes. `content` adds what was said, given and found.
        """
        from .exchange.exports.otel.otlp import lines
        from .exchange.exports.otel.spans import session_span

        return lines(
            session_span(self.log, content=content, children=children, redactor=self._redactor(redact))
        )

    def _redactor(self, redact: bool) -> Redactor | None:
        return self.log.runtime.redactor if redact else None

    def _entries(self, since: int, redact: bool) -> Iterator[Entry]:
        from .exchange.exports.path_reader import path_entries, redact_entries

        return redact_entries(path_entries(self.log, since), self._redactor(redact))

    def _row(self, redact: bool) -> SessionRow:
        from msgspec.structs import replace

        row = self.log.store.session(self.log.session_id)
        if not redact:
            return row
        hide = self.log.runtime.redactor.redact_json
        return replace(row, title=hide(row.title), error=hide(row.error), agent=hide(row.agent))
