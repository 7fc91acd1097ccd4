"""OpenAI's models over its Responses API, called with the SDK `openai`.

Nothing is stored at OpenAI: reasoning is returned encrypted and sent again. The last event of a stream contains the
whole response, so nothing is assembled here but the list of its items, where a server leaves that out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar

from oakleaf.core.context import endpoint_of
from oakleaf.core.entries import Endpoint, Settings
from oakleaf.models.base import Delta, Request, StreamReply
from oakleaf.providers.base import StreamFailure, VendorClient, VendorPlugin, closing_reply
from oakleaf.providers.connections import VendorConnection
from oakleaf.providers.replies import RecordedReply, text_or_none
from oakleaf.wire.base import Request as History
from oakleaf.wire.parsing import to_dict

_NOT_ENCRYPTED = "Encrypted content is not supported"
_FINAL_EVENTS = ("response.completed", "response.incomplete")
_TEXT_EVENTS = ("response.output_text.delta", "response.refusal.delta")
_REASONING_EVENTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


class OpenAIModel(VendorClient):
    provider = "openai"
    package = "openai"
    client_class = "AsyncOpenAI"
    extra = "openai"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    url_variable = "OPENAI_BASE_URL"
    url_path = "/v1"

    _encrypts_reasoning = True  # until the model refuses it

    def _method(self, client: Any) -> Callable[..., Any]:
        return client.responses.create  # type: ignore[no-any-return]

    def _sdk_errors(self, sdk: Any) -> tuple[type[Exception], ...]:
        return (sdk.OpenAIError,)

    async def _pieces(self, connection: VendorConnection, request: Request) -> AsyncGenerator[object, None]:
        async with (
            self._opened(connection) as create,
            closing_reply(await self._ask(connection.sdk, create, request)) as events,
        ):
            yield Delta()
            items: dict[int, Any] = {}
            async for event in events:
                yield _read_event(to_dict(event), items)

    def endpoint_for(self, settings: Settings) -> Endpoint:
        endpoint = endpoint_of(settings, self.provider)
        is_refused = endpoint.encrypts_reasoning is False and endpoint.model == self.model
        if self._encrypts_reasoning and not is_refused:
            return Endpoint(encrypts_reasoning=True)
        return Endpoint(model=self.model, encrypts_reasoning=False)

    async def _ask(self, sdk: Any, create: Callable[..., Any], request: Request) -> Any:
        arguments = await self._arguments(create, request, stream=True)
        try:
            return await create(**arguments)
        except sdk.BadRequestError as error:
            # A model without reasoning refuses to encrypt it, and says so in this message.
            if _NOT_ENCRYPTED not in str(error) or "include" not in arguments:
                raise
            self._encrypts_reasoning = False
            return await create(**await self._arguments(create, request, stream=True))

    def _project(self, request: Request) -> History:
        history = super()._project(request)
        # The SDK compares each item of a list with each type of a union: 0.3 ms an item. A tuple is passed on.
        return {**history, "input": tuple(history["input"])}


def _read_event(event: dict[str, Any], items: dict[int, Any]) -> object:
    """Return the delta of an event, or the whole response of the last event; collect the complete items."""
    kind = event.get("type")
    if kind == "response.output_item.done":
        items[event["output_index"]] = event["item"]
    if kind in _TEXT_EVENTS:
        return Delta(text=event["delta"])
    if kind in _REASONING_EVENTS:
        return Delta(reasoning=event["delta"])
    if kind in _FINAL_EVENTS:
        return _with_items(to_dict(event["response"]), items)
    if kind == "response.failed":
        raise StreamFailure(event["response"].get("error") or {})
    if kind == "error":
        raise StreamFailure(event)
    return Delta()


def _with_items(response: dict[str, Any], items: dict[int, Any]) -> dict[str, Any]:
    """Return the response with the items: some servers, such as the ChatGPT login's, send items only separately."""
    return response if response.get("output") else {**response, "output": [items[n] for n in sorted(items)]}


class RecordedResponse(RecordedReply):
    """The last event of an OpenAI Responses stream ends the response; before the end only the text is put
    together.
    """

    def __init__(self) -> None:
        super().__init__()
        self._response: dict[str, Any] | None = None
        self._is_complete = False
        self._id: str | None = None
        self._text = ""
        self._items: dict[int, Any] = {}

    def add(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        response = event.get("response")
        if isinstance(response, dict):
            self._id = text_or_none(response.get("id")) or self._id
        if kind in ("response.completed", "response.incomplete") and isinstance(response, dict):
            self._response, self._is_complete = _with_items(response, self._items), True
        elif kind == "response.failed" and isinstance(response, dict):
            self.error = str((response.get("error") or {}).get("message") or "the response failed")
        elif kind == "error":
            self.error = str(event.get("message") or "the stream failed")
        elif kind == "response.output_item.done" and isinstance(event.get("output_index"), int):
            self._items[event["output_index"]] = event.get("item")
        elif kind == "response.output_text.delta":
            self._text += str(event.get("delta") or "")

    def reply(self) -> StreamReply:
        data = self._response
        if data is None and self._text:
            content = [{"type": "output_text", "text": self._text}]
            data = {
                "object": "response",
                "output": [{"type": "message", "role": "assistant", "content": content}],
            }
        return StreamReply(data, self._is_complete and not self.error, self.error, self._id)


class OpenAIPlugin(VendorPlugin):
    client = OpenAIModel
    families = ("gpt-", "chatgpt-", "o1", "o3", "o4-")

    def read_reply(self, content_type: str, body: bytes) -> StreamReply:
        return RecordedResponse().read(content_type, body)


plugin = OpenAIPlugin()
