"""What the command and the format of this plugin do, in words. Imports nothing: `oakleaf --help` reads it."""

COMMANDS = {"headlines": ("Look", "Print the first words of the latest sessions.")}
EXPORTS = {"minutes": "Who said what, one line each."}
