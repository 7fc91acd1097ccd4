"""The protocol of a model, the values it exchanges with the loop, and how a plugin adds models.

A model takes a request and streams its answer: deltas, then one complete `Answer`. It raises `ModelError`, whose type
says whether a retry makes sense. It does not know sessions; the loop does not know vendors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from oakleaf.core.context import Context
from oakleaf.core.messages import Message
from oakleaf.core.tool_definitions import ToolSpec, read_callable_tools
from oakleaf.errors import ModelUnavailable, UnrecognizedReply
from oakleaf.wire import Answer
from oakleaf.wire.base import Blobs


class Request(Struct, frozen=True):
    """The input of a model call: a model answers the `messages`, under the prompt `system`, and may call the `tools`."""

    context: Context
    """The messages with the entries behind the messages, and the settings in force, such as options."""
    blobs: Blobs
    """Returns the bytes behind the hash of a `Media`; None for missing bytes."""

    @property
    def system(self) -> str:
        """The system prompt, its parts divided by empty lines; empty without a prompt."""
        return "\n\n".join(prompt for prompt in self.context.system if prompt.strip())

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of user, assistant and tools, oldest first. A summary is a user message."""
        return self.context.messages

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The callable tools, in the order of the host; empty without tools."""
        return read_callable_tools(self.context.settings.tool_definitions, self.blobs) or ()


class Delta(Struct, frozen=True):
    """A piece of the answer in flight, for display. Tool calls are never streamed in parts."""

    text: str = ""
    reasoning: str = ""


class Model(Protocol):
    """A source of answers: implement `stream` to plug in your own."""

    provider: str
    """The model's wire format, and the issuer of the evidence."""
    model: str

    def stream(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Yield deltas, then exactly one Answer. A stream that ends without a stop reason raises
        `TruncatedReply`.
        """
        ...


ModelLike = Model | str | Sequence[Model | str]
"""A model, a name, or a chain: the next answers if a model cannot be reached."""


def model_name(model: Model) -> str | None:
    """Return the name by which `oakleaf.models` finds the model again, if any: `provider:model`."""
    name: str | None = getattr(model, "name", f"{model.provider}:{model.model}")
    return name


def client_name(name: str, kind: str) -> str:
    """Return the name of a model that was called through a client object of this class."""
    return f"{name}@client:{kind}"


class StreamReply(Struct):
    """A provider's reply in the form without streaming; None if nothing came."""

    data: dict[str, Any] | None
    is_complete: bool
    error: str = ""
    response_id: str | None = None


class ModelPlugin(ABC):
    """The models of a prefix: an entry point of the group `oakleaf.models` names such a plugin.

    The models are called `prefix:name`, and `prefix:name@http://host/path` on another server.
    """

    families: tuple[str, ...] = ()
    """The begins of model names without the prefix, such as `claude-`."""
    url_variable: str | None = None
    """The environment variable in which the operator names another server: the address gets the usual key."""

    @abstractmethod
    def make(self, name: str, base_url: str | None, *, takes_key: bool) -> Model:
        """Return a model. Import no SDK yet, and send nothing.

        Without `takes_key`, only stored data names the address: the model sends no key and nothing else of the environment.
        """

    def make_of(self, client: object, name: str) -> Model:
        """Return a model that is called through a client object of the caller's. Never close or change the object."""
        raise ModelUnavailable(name, f"{type(self).__name__} takes no client object", "pass its name alone")

    def problem(self, model: Model) -> ModelUnavailable | None:
        """Return the reason why a model of the plugin cannot answer, such as a missing package or key. Send nothing."""
        return None

    def read_reply(self, content_type: str, body: bytes) -> StreamReply:
        """Read a recorded response. A stream that was cut gives the part that came, marked as incomplete."""
        raise UnrecognizedReply(f"{type(self).__name__} reads no recorded replies")
