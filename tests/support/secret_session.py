"""Sessions with a secret in every field that a client must not see."""

from __future__ import annotations

import oakleaf
from oakleaf import ToolCall, assistant, system, tool_result, user
from oakleaf.store import Store

SERVICE, ANN, BOB = "service-secret", "ann-secret", "bob-secret"
TOKENS = {"token": SERVICE, "client_tokens": {"ann": ANN, "bob": BOB}}
SECRET = "SECRET-7f3a"


def start_with_secrets(store: Store, owner: str, name: str) -> str:
    """Start a session with the secret in every internal field and return its id."""
    hidden = f"{SECRET} {name}"
    session = store.start(
        "support",
        [system(hidden)],
        owner=owner,
        tags={"note": hidden},
        state={"secret": hidden},
        spec={"prompt": hidden},
        policy={"p": hidden},
        model=hidden,
        tool_names=[hidden],
    )
    session.append([user(f"{name} asks")])
    session.append([assistant(f"{hidden} looking", ToolCall("c1", "look", {"x": hidden}))])
    session.append([tool_result("c1", hidden, details={"d": hidden})])
    session.append([assistant(oakleaf.Reasoning(hidden), oakleaf.Text(f"{name} is answered"))])
    session.note({"n": hidden})
    session.set(prompt=hidden)
    return session.session_id
