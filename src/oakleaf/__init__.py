"""Oakleaf keeps the sessions of LLM agents: durable, resumable, forkable, verifiable.

    store = oakleaf.open("agent.db")
    session = store.start(agent="support", seeds=[oakleaf.system("You help customers.")])

The names below are the public face. They load when first used, so `import oakleaf` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "agent.events": ["Event", "RunResult"],
    "agent.limits": ["Limits"],
    "agent.tools.file_rewind": ["FileAction", "FilesPlan"],
    "agent.tools.mcp.server": ["McpServer", "mcp"],
    "agent.tools.tool": ["Happened", "NeverHappened", "PendingApproval", "Tool", "ToolContext", "tool"],
    "core.context": ["Context"],
    "core.entries": ["BranchSummary", "Compaction", "Entry", "Evidence", "Note", "Settings", "Uncompaction"],
    "core.fit": ["Budget", "FitResult"],
    "core.log_events": ["LogEvent"],
    "core.messages": [
        "Attachment",
        "Media",
        "Message",
        "ProviderBlock",
        "Reasoning",
        "Text",
        "ToolCall",
        "ToolResult",
        "assistant",
        "system",
        "tool_result",
        "user",
    ],
    "core.state": ["derive_updates"],
    "core.tool_definitions": ["ToolSpec"],
    "core.tree": ["Branch", "Leaf"],
    "core.turns": ["CallModel", "OpenCall", "Rest", "RunTools"],
    "core.usage": ["Call", "Price", "Totals", "Usage"],
    "engines.local": ["ModelLike", "Run"],
    "errors": ["OakleafError", "NotFound", "StaleLeaf"],
    "exchange.bundle.transfer": ["BundleImportResult"],
    "exchange.bundle.write": ["BundleExportResult"],
    "exchange.exports.finetune": ["FineTuning"],
    "exchange.importers.ingest": ["ToolImportResult"],
    "lab.experiment": ["Cell"],
    "lab.lab": ["Lab"],
    "lab.report": ["LabReport"],
    "lab.scorers": ["Judge", "ScoredSession", "ScoredTurn"],
    "log.changes": ["AppendResult", "Cut"],
    "log.log": ["HydratedSession"],
    "log.runtime": ["Runtime"],
    "log.verify": ["Problem"],
    "log.workspace": ["Workspace"],
    "models.model": ["Delta", "Model", "Request"],
    "models.prices": ["Rates"],
    "models.recorded": ["RecordedModel"],
    "models.scripted": ["Broken", "ScriptedModel", "Slow"],
    "replay.diff": ["Diff", "diff"],
    "replay.report": ["ReplayReport"],
    "replay.turn_comparison": ["Divergence"],
    "session": ["Session"],
    "store": ["Store", "open"],
    "stores.base": ["Fact", "SessionPage", "SessionRow", "StoreBackend"],
    "stores.search": ["SearchHit", "SearchPage"],
    "async_turn": ["AsyncTurn"],
    "turn": ["Turn"],
    "wire": ["Answer"],
    "wire.explain": ["Difference"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# `open` is left out: `from oakleaf import *` must not replace the builtin.
__all__ = sorted(_HOME_OF.keys() - {"open"})

if TYPE_CHECKING:
    from .agent.events import Event as Event
    from .agent.events import RunResult as RunResult
    from .agent.limits import Limits as Limits
    from .agent.tools.file_rewind import FileAction as FileAction
    from .agent.tools.file_rewind import FilesPlan as FilesPlan
    from .agent.tools.mcp.server import McpServer as McpServer
    from .agent.tools.mcp.server import mcp as mcp
    from .agent.tools.tool import Happened as Happened
    from .agent.tools.tool import NeverHappened as NeverHappened
    from .agent.tools.tool import PendingApproval as PendingApproval
    from .agent.tools.tool import Tool as Tool
    from .agent.tools.tool import ToolContext as ToolContext
    from .agent.tools.tool import tool as tool
    from .async_turn import AsyncTurn as AsyncTurn
    from .core.context import Context as Context
    from .core.entries import BranchSummary as BranchSummary
    from .core.entries import Compaction as Compaction
    from .core.entries import Entry as Entry
    from .core.entries import Evidence as Evidence
    from .core.entries import Note as Note
    from .core.entries import Settings as Settings
    from .core.entries import Uncompaction as Uncompaction
    from .core.fit import Budget as Budget
    from .core.fit import FitResult as FitResult
    from .core.log_events import LogEvent as LogEvent
    from .core.messages import Attachment as Attachment
    from .core.messages import Media as Media
    from .core.messages import Message as Message
    from .core.messages import ProviderBlock as ProviderBlock
    from .core.messages import Reasoning as Reasoning
    from .core.messages import Text as Text
    from .core.messages import ToolCall as ToolCall
    from .core.messages import ToolResult as ToolResult
    from .core.messages import assistant as assistant
    from .core.messages import system as system
    from .core.messages import tool_result as tool_result
    from .core.messages import user as user
    from .core.state import derive_updates as derive_updates
    from .core.tool_definitions import ToolSpec as ToolSpec
    from .core.tree import Branch as Branch
    from .core.tree import Leaf as Leaf
    from .core.turns import CallModel as CallModel
    from .core.turns import OpenCall as OpenCall
    from .core.turns import Rest as Rest
    from .core.turns import RunTools as RunTools
    from .core.usage import Call as Call
    from .core.usage import Price as Price
    from .core.usage import Totals as Totals
    from .core.usage import Usage as Usage
    from .engines.local import ModelLike as ModelLike
    from .engines.local import Run as Run
    from .errors import NotFound as NotFound
    from .errors import OakleafError as OakleafError
    from .errors import StaleLeaf as StaleLeaf
    from .exchange.bundle.transfer import BundleImportResult as BundleImportResult
    from .exchange.bundle.write import BundleExportResult as BundleExportResult
    from .exchange.exports.finetune import FineTuning as FineTuning
    from .exchange.importers.ingest import ToolImportResult as ToolImportResult
    from .lab.experiment import Cell as Cell
    from .lab.lab import Lab as Lab
    from .lab.report import LabReport as LabReport
    from .lab.scorers import Judge as Judge
    from .lab.scorers import ScoredSession as ScoredSession
    from .lab.scorers import ScoredTurn as ScoredTurn
    from .log.changes import AppendResult as AppendResult
    from .log.changes import Cut as Cut
    from .log.log import HydratedSession as HydratedSession
    from .log.runtime import Runtime as Runtime
    from .log.verify import Problem as Problem
    from .log.workspace import Workspace as Workspace
    from .models.model import Delta as Delta
    from .models.model import Model as Model
    from .models.model import Request as Request
    from .models.prices import Rates as Rates
    from .models.recorded import RecordedModel as RecordedModel
    from .models.scripted import Broken as Broken
    from .models.scripted import ScriptedModel as ScriptedModel
    from .models.scripted import Slow as Slow
    from .replay.diff import Diff as Diff
    from .replay.diff import diff as diff
    from .replay.report import ReplayReport as ReplayReport
    from .replay.turn_comparison import Divergence as Divergence
    from .session import Session as Session
    from .store import Store as Store
    from .store import open as open
    from .stores.base import Fact as Fact
    from .stores.base import SessionPage as SessionPage
    from .stores.base import SessionRow as SessionRow
    from .stores.base import StoreBackend as StoreBackend
    from .stores.search import SearchHit as SearchHit
    from .stores.search import SearchPage as SearchPage
    from .turn import Turn as Turn
    from .wire import Answer as Answer
    from .wire.explain import Difference as Difference


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'oakleaf' has no attribute {name!r}")
    value = getattr(import_module(f"oakleaf.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
