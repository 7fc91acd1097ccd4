"""A small server that speaks Redis' protocol: texts and lists by key, and no command that would write."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

READ_COMMANDS = {b"SCAN", b"TYPE", b"GET", b"LRANGE", b"AUTH", b"SELECT", b"CLIENT"}


class Server(socketserver.ThreadingTCPServer):
    """Texts and lists by key. Knows nothing that would write."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self, values: Mapping[str, Any], password: str = "", page: int = 2) -> None:
        super().__init__(("127.0.0.1", 0), RedisHandler)
        self.values, self.password, self.page = values, password, page
        self.commands: list[bytes] = []


class RedisHandler(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        is_known = not self.server.password
        while head := self.rfile.readline():
            words = [self._word() for _ in range(int(head[1:]))]
            self.server.commands.append(words[0])
            if words[0] == b"AUTH":
                is_known = words[-1].decode() == self.server.password
                self.wfile.write(b"+OK\r\n" if is_known else b"-WRONGPASS invalid password\r\n")
            elif not is_known:
                self.wfile.write(b"-NOAUTH Authentication required.\r\n")
            else:
                self.wfile.write(_answer(self.server, words))

    def _word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]


def _answer(server: Server, words: list[bytes]) -> bytes:
    verb, *rest = words
    key = rest[0].decode()
    if verb == b"CLIENT":  # the client names itself
        return b"+OK\r\n"
    value = server.values.get(key)
    if verb == b"SELECT":
        return b"+OK\r\n" if key == "0" else b"-ERR DB index is out of range\r\n"
    if verb == b"SCAN":
        names = sorted(name for name in server.values if fnmatch(name, rest[2].decode()))
        first, more = int(key), int(key) + server.page
        end = b"%d" % more if more < len(names) else b"0"
        return b"*2\r\n" + _text(end) + _list([name.encode() for name in names[first:more]])
    if verb == b"TYPE":
        kinds = {list: b"+list\r\n", str: b"+string\r\n", bytes: b"+string\r\n"}
        return kinds.get(type(value), b"+hash\r\n")
    if verb == b"GET":
        return _text(value.encode() if isinstance(value, str) else value)
    first, last = int(rest[1]), int(rest[2])
    return _list([item.encode("utf-8", "replace") for item in value[first : last + 1]])


def _text(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _list(values: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(values) + b"".join(map(_text, values))


@contextmanager
def run_server(values: Mapping[str, Any], **how: Any) -> Iterator[tuple[str, Server]]:
    with Server(values, **how) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}", server
        server.shutdown()
