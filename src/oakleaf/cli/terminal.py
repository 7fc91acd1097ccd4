"""What a hand-written command of a plugin builds on: the terminal, the store that was named, the agent's options.

The names load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf.cli.agent_file": ["AgentFile", "agent_of_module"],
    "oakleaf.cli.agent_options": [
        "AgentOptions",
        "agent_for",
        "agent_options",
        "command_tools",
        "default_models",
        "input_options",
        "read_options",
    ],
    "oakleaf.cli.config": ["known_model", "model_option", "model_options"],
    "oakleaf.cli.key_file": [
        "merge",
        "merge_changes",
        "model_beside",
        "read_toml",
        "text_beside",
        "tool_beside",
    ],
    "oakleaf.cli.json_log": ["log_format_option", "start_log"],
    "oakleaf.cli.mcp_servers": ["connect_once"],
    "oakleaf.cli.option_group": ["complete_file", "option_group"],
    "oakleaf.cli.reference": [
        "complete",
        "is_title",
        "required_reference",
        "resolve",
        "resolve_stored_session",
    ],
    "oakleaf.cli.rendering.error_text": ["CommandError", "needs_extra", "print_error"],
    "oakleaf.cli.rendering.output": [
        "clip",
        "confirm_plan",
        "echo",
        "encode_line",
        "encode_report",
        "force_option",
        "format_age",
        "is_terminal",
        "json_option",
        "notify",
        "plural",
        "print_json",
        "progress_bar",
        "safe",
        "table",
        "to_json_value",
        "width",
        "yes_option",
    ],
    "oakleaf.cli.rendering.report_file": ["open_report", "write_report"],
    "oakleaf.cli.run_source": ["Source", "reject_naming_options", "resolve_runnable"],
    "oakleaf.cli.signals": ["Callbacks", "signal_handlers"],
    "oakleaf.cli.store_option": ["StoreLocation", "default_store", "pass_location"],
    "oakleaf.cli.text_argument": ["read_text", "text_option"],
    "oakleaf.cli.verb_command": ["Typist", "VerbGroup"],
    "oakleaf.cli.tool_files": ["load_module", "load_tools"],
    "oakleaf.cli.turn_input": ["read_input", "turn_about", "turn_options"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf.cli.agent_file import AgentFile as AgentFile
    from oakleaf.cli.agent_file import agent_of_module as agent_of_module
    from oakleaf.cli.agent_options import AgentOptions as AgentOptions
    from oakleaf.cli.agent_options import agent_for as agent_for
    from oakleaf.cli.agent_options import agent_options as agent_options
    from oakleaf.cli.agent_options import command_tools as command_tools
    from oakleaf.cli.agent_options import default_models as default_models
    from oakleaf.cli.agent_options import input_options as input_options
    from oakleaf.cli.agent_options import read_options as read_options
    from oakleaf.cli.config import known_model as known_model
    from oakleaf.cli.config import model_option as model_option
    from oakleaf.cli.config import model_options as model_options
    from oakleaf.cli.json_log import log_format_option as log_format_option
    from oakleaf.cli.json_log import start_log as start_log
    from oakleaf.cli.key_file import merge as merge
    from oakleaf.cli.key_file import merge_changes as merge_changes
    from oakleaf.cli.key_file import model_beside as model_beside
    from oakleaf.cli.key_file import read_toml as read_toml
    from oakleaf.cli.key_file import text_beside as text_beside
    from oakleaf.cli.key_file import tool_beside as tool_beside
    from oakleaf.cli.mcp_servers import connect_once as connect_once
    from oakleaf.cli.option_group import complete_file as complete_file
    from oakleaf.cli.option_group import option_group as option_group
    from oakleaf.cli.reference import complete as complete
    from oakleaf.cli.reference import is_title as is_title
    from oakleaf.cli.reference import required_reference as required_reference
    from oakleaf.cli.reference import resolve as resolve
    from oakleaf.cli.reference import resolve_stored_session as resolve_stored_session
    from oakleaf.cli.rendering.error_text import CommandError as CommandError
    from oakleaf.cli.rendering.error_text import needs_extra as needs_extra
    from oakleaf.cli.rendering.error_text import print_error as print_error
    from oakleaf.cli.rendering.output import clip as clip
    from oakleaf.cli.rendering.output import confirm_plan as confirm_plan
    from oakleaf.cli.rendering.output import echo as echo
    from oakleaf.cli.rendering.output import encode_line as encode_line
    from oakleaf.cli.rendering.output import encode_report as encode_report
    from oakleaf.cli.rendering.output import force_option as force_option
    from oakleaf.cli.rendering.output import format_age as format_age
    from oakleaf.cli.rendering.output import is_terminal as is_terminal
    from oakleaf.cli.rendering.output import json_option as json_option
    from oakleaf.cli.rendering.output import notify as notify
    from oakleaf.cli.rendering.output import plural as plural
    from oakleaf.cli.rendering.output import print_json as print_json
    from oakleaf.cli.rendering.output import progress_bar as progress_bar
    from oakleaf.cli.rendering.output import safe as safe
    from oakleaf.cli.rendering.output import table as table
    from oakleaf.cli.rendering.output import to_json_value as to_json_value
    from oakleaf.cli.rendering.output import width as width
    from oakleaf.cli.rendering.output import yes_option as yes_option
    from oakleaf.cli.rendering.report_file import open_report as open_report
    from oakleaf.cli.rendering.report_file import write_report as write_report
    from oakleaf.cli.run_source import Source as Source
    from oakleaf.cli.run_source import reject_naming_options as reject_naming_options
    from oakleaf.cli.run_source import resolve_runnable as resolve_runnable
    from oakleaf.cli.signals import Callbacks as Callbacks
    from oakleaf.cli.signals import signal_handlers as signal_handlers
    from oakleaf.cli.store_option import StoreLocation as StoreLocation
    from oakleaf.cli.store_option import default_store as default_store
    from oakleaf.cli.store_option import pass_location as pass_location
    from oakleaf.cli.text_argument import read_text as read_text
    from oakleaf.cli.text_argument import text_option as text_option
    from oakleaf.cli.tool_files import load_module as load_module
    from oakleaf.cli.tool_files import load_tools as load_tools
    from oakleaf.cli.turn_input import read_input as read_input
    from oakleaf.cli.turn_input import turn_about as turn_about
    from oakleaf.cli.turn_input import turn_options as turn_options
    from oakleaf.cli.verb_command import Typist as Typist
    from oakleaf.cli.verb_command import VerbGroup as VerbGroup
