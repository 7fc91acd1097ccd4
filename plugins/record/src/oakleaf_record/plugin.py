"""What the commands of this plugin do, in words. Imports nothing: `oakleaf --help` reads it."""

COMMANDS = {
    "record": (
        "Start here",
        "Run a program and record its model calls; without a command, record every program that uses the proxy.",
    ),
}
