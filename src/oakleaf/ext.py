"""What a plugin does with sessions beyond the public face: the names that its author may rely on.

Values and contracts are public where they stand: `oakleaf.core`, `oakleaf.wire`, `oakleaf.stores`, `oakleaf.ingest`.
Here are the names for doing. They load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf.agent.blocking": ["blocking"],
    "oakleaf.agent.call_meter": ["CallMeter", "Reservation"],
    "oakleaf.agent.call_status": ["CallStatus"],
    "oakleaf.agent.events": ["fact_event_type", "is_whole_answer"],
    "oakleaf.agent.limits": ["with_defaults"],
    "oakleaf.agent.notebook": ["Notebook"],
    "oakleaf.agent.open_turn": ["OpenTurn"],
    "oakleaf.agent.policy": ["Answers", "GoesOn", "OwnTools", "Recorded", "RunPolicy"],
    "oakleaf.agent.prompt_window": ["WindowUse", "measure_window"],
    "oakleaf.agent.queued_turn": ["QueuedTurn", "queue_input", "queue_open_turn", "queue_turn"],
    "oakleaf.agent.reader": ["SessionReader", "StoreReader"],
    "oakleaf.agent.run": ["resolve_models"],
    "oakleaf.agent.tool_batch": ["UNKNOWN_OUTCOME", "earlier_data"],
    "oakleaf.agent.tools.approval": ["with_approval"],
    "oakleaf.agent.tools.process_tree": ["ProcessTree"],
    "oakleaf.agent.tools.public_target": ["Target", "resolve_target"],
    "oakleaf.agent.tools.sources": [
        "BEFORE_A_SESSION",
        "ToolLike",
        "ToolSource",
        "is_source",
        "list_tools",
        "plugin_tools",
        "split_tools",
        "tools_by_name",
    ],
    "oakleaf.agent.tools.tool": ["EarlierCall", "Effect", "error_text"],
    "oakleaf.agent.writer": ["run_uncancelled"],
    "oakleaf.bundle.exporters": ["Exporter", "find_exporter", "formats"],
    "oakleaf.bundle.read": ["BundleReader", "check_bundle"],
    "oakleaf.bundle.write": ["atomic_file"],
    "oakleaf.mirror": ["Mirror"],
    "oakleaf.log.threads": ["run_blocking", "run_by_size", "run_to_end"],
    "oakleaf.log.moves": ["Move"],
    "oakleaf.log.runtime": ["Runtime", "environment_secrets", "real_runtime"],
    "oakleaf.log.storage": ["SessionStorage"],
    "oakleaf.log.workspace": ["ScopeTier", "Selection"],
    "oakleaf.models.availability": ["available_models", "check_available"],
    "oakleaf.models.names": [
        "address_of",
        "is_model_name",
        "model_by_name",
        "needs_client",
        "stored_model",
        "with_provider",
    ],
    "oakleaf.models.prices": ["price", "price_of"],
    "oakleaf.models.servers": ["find_server"],
    "oakleaf.replay.diff": ["DiffSide", "SetupChange"],
    "oakleaf.replay.diff_window": ["DiffCursor", "DiffWindow", "diff_window"],
    "oakleaf.replay.replay": ["ReplayPlan", "ReplayTarget"],
    "oakleaf.store": [
        "excerpt",
        "fork_at",
        "import_checked",
        "mark_interrupted",
        "notebook",
        "observe_commits",
        "open_turn",
        "read",
        "read_store",
        "replay_session",
        "run_host_tool",
        "scratch_store",
        "session_at",
        "session_of",
        "store_of",
        "stuck_sessions",
        "without_redaction",
    ],
    "oakleaf.stores.sqlite.encryption": ["register_key"],
    "oakleaf.stores.sqlite.health": ["file_health"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf.agent.blocking import blocking as blocking
    from oakleaf.agent.call_meter import CallMeter as CallMeter
    from oakleaf.agent.call_meter import Reservation as Reservation
    from oakleaf.agent.call_status import CallStatus as CallStatus
    from oakleaf.agent.events import fact_event_type as fact_event_type
    from oakleaf.agent.events import is_whole_answer as is_whole_answer
    from oakleaf.agent.limits import with_defaults as with_defaults
    from oakleaf.agent.notebook import Notebook as Notebook
    from oakleaf.agent.open_turn import OpenTurn as OpenTurn
    from oakleaf.agent.policy import Answers as Answers
    from oakleaf.agent.policy import GoesOn as GoesOn
    from oakleaf.agent.policy import OwnTools as OwnTools
    from oakleaf.agent.policy import Recorded as Recorded
    from oakleaf.agent.policy import RunPolicy as RunPolicy
    from oakleaf.agent.prompt_window import WindowUse as WindowUse
    from oakleaf.agent.prompt_window import measure_window as measure_window
    from oakleaf.agent.queued_turn import QueuedTurn as QueuedTurn
    from oakleaf.agent.queued_turn import queue_input as queue_input
    from oakleaf.agent.queued_turn import queue_open_turn as queue_open_turn
    from oakleaf.agent.queued_turn import queue_turn as queue_turn
    from oakleaf.agent.reader import SessionReader as SessionReader
    from oakleaf.agent.reader import StoreReader as StoreReader
    from oakleaf.agent.run import resolve_models as resolve_models
    from oakleaf.agent.tool_batch import UNKNOWN_OUTCOME as UNKNOWN_OUTCOME
    from oakleaf.agent.tool_batch import earlier_data as earlier_data
    from oakleaf.agent.tools.approval import with_approval as with_approval
    from oakleaf.agent.tools.process_tree import ProcessTree as ProcessTree
    from oakleaf.agent.tools.public_target import Target as Target
    from oakleaf.agent.tools.public_target import resolve_target as resolve_target
    from oakleaf.agent.tools.sources import BEFORE_A_SESSION as BEFORE_A_SESSION
    from oakleaf.agent.tools.sources import ToolLike as ToolLike
    from oakleaf.agent.tools.sources import ToolSource as ToolSource
    from oakleaf.agent.tools.sources import is_source as is_source
    from oakleaf.agent.tools.sources import list_tools as list_tools
    from oakleaf.agent.tools.sources import plugin_tools as plugin_tools
    from oakleaf.agent.tools.sources import split_tools as split_tools
    from oakleaf.agent.tools.sources import tools_by_name as tools_by_name
    from oakleaf.agent.tools.tool import EarlierCall as EarlierCall
    from oakleaf.agent.tools.tool import Effect as Effect
    from oakleaf.agent.tools.tool import error_text as error_text
    from oakleaf.agent.writer import run_uncancelled as run_uncancelled
    from oakleaf.bundle.exporters import Exporter as Exporter
    from oakleaf.bundle.exporters import find_exporter as find_exporter
    from oakleaf.bundle.exporters import formats as formats
    from oakleaf.bundle.read import BundleReader as BundleReader
    from oakleaf.bundle.read import check_bundle as check_bundle
    from oakleaf.bundle.write import atomic_file as atomic_file
    from oakleaf.log.moves import Move as Move
    from oakleaf.log.runtime import Runtime as Runtime
    from oakleaf.log.runtime import environment_secrets as environment_secrets
    from oakleaf.log.runtime import real_runtime as real_runtime
    from oakleaf.log.storage import SessionStorage as SessionStorage
    from oakleaf.log.threads import run_blocking as run_blocking
    from oakleaf.log.threads import run_by_size as run_by_size
    from oakleaf.log.threads import run_to_end as run_to_end
    from oakleaf.log.workspace import ScopeTier as ScopeTier
    from oakleaf.log.workspace import Selection as Selection
    from oakleaf.mirror import Mirror as Mirror
    from oakleaf.models.availability import available_models as available_models
    from oakleaf.models.availability import check_available as check_available
    from oakleaf.models.names import address_of as address_of
    from oakleaf.models.names import is_model_name as is_model_name
    from oakleaf.models.names import model_by_name as model_by_name
    from oakleaf.models.names import needs_client as needs_client
    from oakleaf.models.names import stored_model as stored_model
    from oakleaf.models.names import with_provider as with_provider
    from oakleaf.models.prices import price as price
    from oakleaf.models.prices import price_of as price_of
    from oakleaf.models.servers import find_server as find_server
    from oakleaf.replay.diff import DiffSide as DiffSide
    from oakleaf.replay.diff import SetupChange as SetupChange
    from oakleaf.replay.diff_window import DiffCursor as DiffCursor
    from oakleaf.replay.diff_window import DiffWindow as DiffWindow
    from oakleaf.replay.diff_window import diff_window as diff_window
    from oakleaf.replay.replay import ReplayPlan as ReplayPlan
    from oakleaf.replay.replay import ReplayTarget as ReplayTarget
    from oakleaf.store import excerpt as excerpt
    from oakleaf.store import fork_at as fork_at
    from oakleaf.store import import_checked as import_checked
    from oakleaf.store import mark_interrupted as mark_interrupted
    from oakleaf.store import notebook as notebook
    from oakleaf.store import observe_commits as observe_commits
    from oakleaf.store import open_turn as open_turn
    from oakleaf.store import read as read
    from oakleaf.store import read_store as read_store
    from oakleaf.store import replay_session as replay_session
    from oakleaf.store import run_host_tool as run_host_tool
    from oakleaf.store import scratch_store as scratch_store
    from oakleaf.store import session_at as session_at
    from oakleaf.store import session_of as session_of
    from oakleaf.store import store_of as store_of
    from oakleaf.store import stuck_sessions as stuck_sessions
    from oakleaf.store import without_redaction as without_redaction
    from oakleaf.stores.sqlite.encryption import register_key as register_key
    from oakleaf.stores.sqlite.health import file_health as file_health
