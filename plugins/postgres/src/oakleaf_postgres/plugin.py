"""What this plugin adds, in words. Imports nothing."""

COMMANDS = {"worker": ("Look", "Run the tasks of a queue; start as many workers as you need.")}
