"""One session's log: append, path, rewind, fork, verify. The only package that calls a store's `commit`."""
