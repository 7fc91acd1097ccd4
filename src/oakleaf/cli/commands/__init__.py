"""One module per command or family of commands: parse, one call, print."""
