"""What the command of this plugin does, in words. Imports nothing: `oakleaf --help` reads it."""

COMMANDS = {"serve": ("Look", "Serve the API and the viewer over HTTP.")}
