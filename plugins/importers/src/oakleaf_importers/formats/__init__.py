"""The shapes of other tools' messages, read and written: shared by importers and adapters."""
