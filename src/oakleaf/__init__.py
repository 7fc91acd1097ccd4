"""Oakleaf keeps the sessions of LLM agents: durable, resumable, forkable, verifiable.

    store = oakleaf.open("agent.db")
    session = store.start(agent="support", seeds=[oakleaf.system("You help customers.")])

The names below are the public face. They load when first used, so `import oakleaf` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

__version__ = "0.1.0"

_HOMES = {
    "oakleaf.agent.events": ["Event", "RunResult"],
    "oakleaf.agent.limits": ["Limits"],
    "oakleaf.agent.tools.tool": [
        "Happened",
        "NeverHappened",
        "PendingApproval",
        "Tool",
        "ToolContext",
        "tool",
    ],
    "oakleaf.core.context": ["Context"],
    "oakleaf.core.entries": [
        "BranchSummary",
        "Compaction",
        "Entry",
        "Evidence",
        "Note",
        "Settings",
        "Uncompaction",
    ],
    "oakleaf.core.fit": ["Budget", "FitResult", "fit"],
    "oakleaf.core.messages": [
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
    "oakleaf.core.state": ["derive_updates"],
    "oakleaf.core.tool_definitions": ["ToolSpec"],
    "oakleaf.core.tree": ["Branch", "Leaf"],
    "oakleaf.core.turns": ["CallModel", "OpenCall", "Rest", "RunTools"],
    "oakleaf.core.usage": ["Call", "Price", "Totals", "Usage"],
    "oakleaf.agent.run": ["Run"],
    "oakleaf.errors": ["OakleafError", "NotFound", "Refused", "StaleLeaf"],
    "oakleaf.bundle.exporters": ["ExportResult"],
    "oakleaf.bundle.transfer": ["BundleImportResult"],
    "oakleaf.bundle.write": ["BundleExportResult"],
    "oakleaf.ingest.ingest": ["ToolImportResult"],
    "oakleaf.log.hooks": ["Ending", "Hooks", "WatchedModelCall", "WatchedTool", "WatchedTurn"],
    "oakleaf.log.request": ["Committed", "Cut"],
    "oakleaf.log.log": ["HydratedSession"],
    "oakleaf.log.runtime": ["Runtime"],
    "oakleaf.log.audit": ["AuditedCall", "AuditPage"],
    "oakleaf.log.seal": ["Seal", "SealCheck"],
    "oakleaf.log.verify": ["Problem"],
    "oakleaf.log.workspace": ["Workspace"],
    "oakleaf.models.base": ["Delta", "Model", "ModelLike", "Request"],
    "oakleaf.models.names": ["model"],
    "oakleaf.models.prices": ["Rates"],
    "oakleaf.models.recorded": ["RecordedModel"],
    "oakleaf.models.scripted": ["Broken", "ScriptedModel", "Slow"],
    "oakleaf.replay.diff": ["Diff", "diff"],
    "oakleaf.replay.report": ["ReplayReport"],
    "oakleaf.core.facts": ["StoredFact"],
    "oakleaf.core.turn_comparison": ["Divergence"],
    "oakleaf.session": ["Session"],
    "oakleaf.store": ["Store", "draw_tree", "open"],
    "oakleaf.stores.base": ["SessionPage", "SessionRow", "StoreBackend"],
    "oakleaf.stores.search": ["SearchHit", "SearchPage"],
    "oakleaf.turn.async_turn": ["AsyncTurn"],
    "oakleaf.turn.turn": ["Turn"],
    "oakleaf.wire": ["Answer"],
    "oakleaf.wire.explain": ["Difference"],
}
__getattr__, _names = late_names(__name__, _HOMES)

# `open` is left out: `from oakleaf import *` must not replace the builtin.
__all__ = [name for name in _names if name != "open"]

if TYPE_CHECKING:
    from oakleaf.agent.events import Event as Event
    from oakleaf.agent.events import RunResult as RunResult
    from oakleaf.agent.limits import Limits as Limits
    from oakleaf.agent.run import Run as Run
    from oakleaf.agent.tools.tool import Happened as Happened
    from oakleaf.agent.tools.tool import NeverHappened as NeverHappened
    from oakleaf.agent.tools.tool import PendingApproval as PendingApproval
    from oakleaf.agent.tools.tool import Tool as Tool
    from oakleaf.agent.tools.tool import ToolContext as ToolContext
    from oakleaf.agent.tools.tool import tool as tool
    from oakleaf.bundle.exporters import ExportResult as ExportResult
    from oakleaf.bundle.transfer import BundleImportResult as BundleImportResult
    from oakleaf.bundle.write import BundleExportResult as BundleExportResult
    from oakleaf.core.context import Context as Context
    from oakleaf.core.entries import BranchSummary as BranchSummary
    from oakleaf.core.entries import Compaction as Compaction
    from oakleaf.core.entries import Entry as Entry
    from oakleaf.core.entries import Evidence as Evidence
    from oakleaf.core.entries import Note as Note
    from oakleaf.core.entries import Settings as Settings
    from oakleaf.core.entries import Uncompaction as Uncompaction
    from oakleaf.core.facts import StoredFact as StoredFact
    from oakleaf.core.fit import Budget as Budget
    from oakleaf.core.fit import FitResult as FitResult
    from oakleaf.core.fit import fit as fit
    from oakleaf.core.messages import Attachment as Attachment
    from oakleaf.core.messages import Media as Media
    from oakleaf.core.messages import Message as Message
    from oakleaf.core.messages import ProviderBlock as ProviderBlock
    from oakleaf.core.messages import Reasoning as Reasoning
    from oakleaf.core.messages import Text as Text
    from oakleaf.core.messages import ToolCall as ToolCall
    from oakleaf.core.messages import ToolResult as ToolResult
    from oakleaf.core.messages import assistant as assistant
    from oakleaf.core.messages import system as system
    from oakleaf.core.messages import tool_result as tool_result
    from oakleaf.core.messages import user as user
    from oakleaf.core.state import derive_updates as derive_updates
    from oakleaf.core.tool_definitions import ToolSpec as ToolSpec
    from oakleaf.core.tree import Branch as Branch
    from oakleaf.core.tree import Leaf as Leaf
    from oakleaf.core.turn_comparison import Divergence as Divergence
    from oakleaf.core.turns import CallModel as CallModel
    from oakleaf.core.turns import OpenCall as OpenCall
    from oakleaf.core.turns import Rest as Rest
    from oakleaf.core.turns import RunTools as RunTools
    from oakleaf.core.usage import Call as Call
    from oakleaf.core.usage import Price as Price
    from oakleaf.core.usage import Totals as Totals
    from oakleaf.core.usage import Usage as Usage
    from oakleaf.errors import NotFound as NotFound
    from oakleaf.errors import OakleafError as OakleafError
    from oakleaf.errors import Refused as Refused
    from oakleaf.errors import StaleLeaf as StaleLeaf
    from oakleaf.ingest.ingest import ToolImportResult as ToolImportResult
    from oakleaf.log.audit import AuditedCall as AuditedCall
    from oakleaf.log.audit import AuditPage as AuditPage
    from oakleaf.log.hooks import Ending as Ending
    from oakleaf.log.hooks import Hooks as Hooks
    from oakleaf.log.hooks import WatchedModelCall as WatchedModelCall
    from oakleaf.log.hooks import WatchedTool as WatchedTool
    from oakleaf.log.hooks import WatchedTurn as WatchedTurn
    from oakleaf.log.log import HydratedSession as HydratedSession
    from oakleaf.log.request import Committed as Committed
    from oakleaf.log.request import Cut as Cut
    from oakleaf.log.runtime import Runtime as Runtime
    from oakleaf.log.seal import Seal as Seal
    from oakleaf.log.seal import SealCheck as SealCheck
    from oakleaf.log.verify import Problem as Problem
    from oakleaf.log.workspace import Workspace as Workspace
    from oakleaf.models.base import Delta as Delta
    from oakleaf.models.base import Model as Model
    from oakleaf.models.base import ModelLike as ModelLike
    from oakleaf.models.base import Request as Request
    from oakleaf.models.names import model as model
    from oakleaf.models.prices import Rates as Rates
    from oakleaf.models.recorded import RecordedModel as RecordedModel
    from oakleaf.models.scripted import Broken as Broken
    from oakleaf.models.scripted import ScriptedModel as ScriptedModel
    from oakleaf.models.scripted import Slow as Slow
    from oakleaf.replay.diff import Diff as Diff
    from oakleaf.replay.diff import diff as diff
    from oakleaf.replay.report import ReplayReport as ReplayReport
    from oakleaf.session import Session as Session
    from oakleaf.store import Store as Store
    from oakleaf.store import draw_tree as draw_tree
    from oakleaf.store import open as open
    from oakleaf.stores.base import SessionPage as SessionPage
    from oakleaf.stores.base import SessionRow as SessionRow
    from oakleaf.stores.base import StoreBackend as StoreBackend
    from oakleaf.stores.search import SearchHit as SearchHit
    from oakleaf.stores.search import SearchPage as SearchPage
    from oakleaf.turn.async_turn import AsyncTurn as AsyncTurn
    from oakleaf.turn.turn import Turn as Turn
    from oakleaf.wire import Answer as Answer
    from oakleaf.wire.explain import Difference as Difference


def __dir__() -> list[str]:
    return _names
