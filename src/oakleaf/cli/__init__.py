"""The command line: one function per verb. Parse, one call, print."""
