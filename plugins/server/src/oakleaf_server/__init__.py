"""The HTTP server: an API over one store, live events, and the viewer's files. Needs the extra `server`."""
