"""What the command of this plugin does, in words. Imports nothing: `oakleaf --help` reads it."""

COMMANDS = {"headlines": ("Look", "Print the first words of the latest sessions.")}
