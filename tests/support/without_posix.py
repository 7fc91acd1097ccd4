"""The first lines of a program that runs in a Python without the names that only POSIX gives it."""

from __future__ import annotations

WITHOUT_POSIX = """
import asyncio, os, signal, sys
for name in ("fcntl", "grp", "pwd", "readline", "resource", "termios", "tty", "pty"):
    sys.modules[name] = None
for name in (
    "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "geteuid", "getpgid", "getuid",
    "killpg", "mkfifo", "register_at_fork", "setsid", "uname", "forkpty",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGTSTP", "SIGWINCH", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)


def refuse(*_, **__):
    raise NotImplementedError


asyncio.SelectorEventLoop.add_signal_handler = asyncio.SelectorEventLoop.remove_signal_handler = refuse
"""
