"""What this plugin adds, in words; it imports nothing."""

TOOL_NAMES = (
    *("read_file", "write_file", "edit_file", "list_files", "grep", "read_spill"),
    *("shell", "shell_approved", "http_request"),
)
"""The names of the tools that an agent has in a workspace."""
