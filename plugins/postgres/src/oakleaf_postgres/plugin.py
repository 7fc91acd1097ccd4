"""What this plugin adds, in words. Imports nothing."""

COMMANDS = {
    "enqueue": ("Start here", "Send one input to an agent of the workers, and return at once."),
    "worker": ("Look", "Run the tasks of a queue; start as many workers as you need."),
}
