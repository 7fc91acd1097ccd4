"""What the commands of this plugin do, in words. Imports nothing: `oakleaf --help` reads it."""

COMMANDS = {
    "record": ("Start here", "Run a program and record its model calls."),
    "proxy": ("Start here", "Record every program whose model's base URL is set to this proxy."),
}
