"""Redact known secrets, and text in the unmistakable shape of a key, before anything becomes durable.

Runs before the id is computed, so the chain covers exactly what is stored. Ids and evidence are not redacted: two ids
would become one, and a history with broken ids is useless; `check_name` refuses those that hold a secret.

A known secret is found in the encodings of `encodings` too, in any nesting of a few: text often holds JSON, and JSON
text. One search of the bytes decides whether there is anything to do: for a part of the secret that no escape changes,
and for words that could be base64. A tool call says what was redacted in its arguments, so that it is not run with
placeholders. Every search is linear in the text: tests/whole/test_linear_time.py.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any
from unicodedata import normalize

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.core.codec import check_text
from oakleaf.core.encodings import (
    FORM,
    HTML,
    JSON,
    LINES,
    URL,
    Decoded,
    begun_escape,
    from_base64,
    is_text,
    shortest_base64,
    words_of,
)
from oakleaf.core.entries import BranchSummary, Compaction, Note, Payload, Settings
from oakleaf.core.messages import (
    Attachment,
    Media,
    Message,
    ProviderBlock,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from oakleaf.errors import InvalidArgument, SecretInName, SecretTooShort

MIN_SECRET_LENGTH = 8  # a shorter secret is like a word; redacting it would redact ordinary text
# `task-` and a UUID is no key, so what stands before a plain `sk-` matters; not so in JSON, where it may be an escape.
_SHAPES = (
    r"sk-(?:ant-[A-Za-z0-9_-]{20,}|proj-[A-Za-z0-9_-]{32,}|(?<![A-Za-z0-9]sk-)[A-Za-z0-9_-]{32,})",
    r"g(?:h[pousr]_[A-Za-z0-9]{36,}|ithub_pat_[A-Za-z0-9_]{40,})",
    r"A(?:KIA[A-Z0-9]{16}|Iza[A-Za-z0-9_-]{35})",
    r"xox[abprs]-[A-Za-z0-9-]{20,}",
)
_PATTERNS = re.compile("|".join(_SHAPES))
_KEY_BEGIN = r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
_KEY_BEGINS = re.compile(_KEY_BEGIN).search
_KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----").search
_KEY_MAY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*-{0,4}\Z").search  # its first line, as far as it has arrived
# JSON escapes no character of a shape, so a match in the text is also a match in the bytes. One search per shape:
# a pattern that begins with literal letters is found by them, an alternation is tried at every byte. Measured on
# 1.9 kB: 4.6 µs, one search for each kind of key 6.0, `in` for the same prefixes 8, one alternation of all 20. A byte
# that a shape cannot do without is looked for first, as a number: 0.1 µs, where `b"-" in body` takes 1.8, because Python
# raises and drops an error before it looks for bytes.
_SEARCHES = tuple(
    (byte, re.compile(shape.replace("(?<![A-Za-z0-9]sk-)", "").encode()).search)
    for byte, shape in zip(b"-_A--", (*_SHAPES, _KEY_BEGIN), strict=True)
)
REDACTED = "[redacted]"
MIN_WORD_LENGTH = 3
"""The shortest word that an export hides."""
ENCODED = ", encoded"
"""The end of the name in the placeholder of an encoded secret."""
_HIDDEN, _HIDDEN_ENCODED = "[redacted word]", f"[redacted word{ENCODED}]"
# A long run of letters looks like a key by chance, about once in fifty megabytes. No key has a dot, and none is as short.
PACKED_PIECE = 18
_PACKED = re.compile(
    rf"(?:[A-Za-z0-9+/=]{{{PACKED_PIECE}}}\.)*[A-Za-z0-9+/=]{{1,{PACKED_PIECE}}}\."
).fullmatch
_MAY_BE_PACKED = re.compile(rf'"[A-Za-z0-9+/=]{{1,{PACKED_PIECE}}}\.(?:"|[A-Za-z0-9+/=])'.encode()).search
_PLACEHOLDER = re.compile(r"\[redacted(?: [^\[\]]*)?\]")
MAX_WORDS = 1_000  # remembered by `redact_word`
MAX_KEY_LENGTH = 16_384  # more text after the first line of a key is no key
_KEY_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_WORD_LETTERS = _KEY_LETTERS + "+/="
MAX_NESTING = 5
"""How many encodings within each other are undone, the lines of base64 counted as one, and the JSON of an entry too."""
MIN_NEEDLE = 4
"""Letters in a row of a secret, searched for in place of all encodings."""
MAX_ENCODED_LENGTH = 16_384
"""How much of a stream's text is looked at for the beginning of an encoded secret."""
_UNESCAPED = re.compile(r"[A-Za-z0-9]+")  # what no encoding but base64 changes
_TO_BASE64_RUNS = bytes(
    ord("a") if chr(code).isalnum() or chr(code) in "+/_-\\%&#;\r\n" else 0 for code in range(128)
) + bytes(128)
"""Shows words of base64, also with escaped letters or continued on the next line."""


_PROOFS = frozenset(["authorization", "authorization_token"])
"""The fields of a request that prove to an MCP server who asks; `headers` holds more of them."""


def is_key_text(text: str) -> bool:
    """Return whether the whole text could be the inside of a key."""
    return not text.strip(_KEY_LETTERS)


def pack_bytes(data: bytes) -> str:
    """Return foreign bytes as text that is never taken for a key, and can be redacted."""
    letters = b64encode(data).decode()
    return "".join(
        f"{letters[start : start + PACKED_PIECE]}." for start in range(0, len(letters), PACKED_PIECE)
    )


def unpack_bytes(text: str) -> bytes:
    return b64decode(text.replace(".", ""))


def may_contain_packed(body: bytes) -> bool:
    """Return whether bytes of JSON may contain packed bytes, invisible to `may_contain_secret`."""
    return _MAY_BE_PACKED(body) is not None


class Secret(Struct, frozen=True):
    """A value never to be stored, and the placeholder."""

    value: bytes
    placeholder: str
    encoded_placeholder: str
    """For an encoding of it: filled in again, the value would be another text."""
    needles: tuple[bytes, ...]
    """Pieces common to all escaped forms of the secret."""

    @classmethod
    def named(cls, name: str, value: str) -> Secret:
        data = value.encode("utf-8", "surrogatepass")
        words = [word.encode() for word in _UNESCAPED.findall(value)]
        longest = max(words, key=len, default=b"")
        needles = (longest,) if len(longest) >= MIN_NEEDLE else tuple(words)
        return cls(data, f"[redacted {name}]", f"[redacted {name}{ENCODED}]", needles)

    @property
    def is_plain(self) -> bool:
        """Whether a single needle is enough to suspect the secret."""
        return any(len(needle) >= MIN_NEEDLE for needle in self.needles)


class Span(Struct, frozen=True, order=True):
    """Where a secret is in a text, in bytes."""

    start: int
    end: int
    placeholder: str


class Redactor:
    """Redacts named secrets, unnamed secrets, and text in the shape of a key."""

    _hidden: re.Pattern[bytes] | None = None
    """Whole words to hide, for an export: their search reads every encoding of the text."""

    def __init__(self, named: Mapping[str, str] = {}, unnamed: Iterable[str] = ()) -> None:
        secrets = [*named.items(), *((f"secret {n}", value) for n, value in enumerate(unnamed, 1))]
        for name, value in secrets:
            if len(value) < MIN_SECRET_LENGTH:
                raise SecretTooShort(name, len(value), MIN_SECRET_LENGTH)
        self._secrets = [Secret.named(name, value) for name, value in secrets]
        self._odd_secrets = [secret for secret in self._secrets if not secret.is_plain]
        has_space = any(b" " in secret.value for secret in self._secrets)
        self._escapes = (JSON, URL, HTML, LINES, *((FORM,) if has_space else ()))
        shortest = min((len(secret.value) for secret in self._secrets), default=MIN_SECRET_LENGTH)
        self._min_word = shortest_base64(shortest)
        self._base64_words = words_of(self._min_word)
        self.values = {f"[redacted {name}]": value for name, value in named.items()}
        """The named secrets, by placeholder: only named secrets can be filled in again."""
        self._words: dict[str, str] = {}
        self.redactions = 0
        """How many texts were changed, as far as a single thread uses the redactor: see `with_own_count`."""
        needles = [secret.needles[0] for secret in self._secrets if secret.is_plain]
        self._searches = (
            *_SEARCHES,
            *((needle[-1], re.compile(re.escape(needle)).search) for needle in needles),
        )

    def hiding(self, words: Iterable[str]) -> Redactor:
        """Return a redactor that also hides whole words, in any case: `Ann` hides `ann` and `ses_ann`, not `annual`."""
        other = copy(self)
        other._hidden = _whole_words(words)
        return other

    def with_own_count(self) -> Redactor:
        """Return a redactor of the same secrets with a count of its own."""
        other = copy(self)
        other.redactions = 0
        return other

    def may_contain_secret(self, body: bytes) -> bool:
        """Return whether bytes of JSON or text may contain a secret: a filter before `redact_payload`, for every append.

        Measured on 1.7 kB: 1.3 µs, decoding and walking the payload 40.
        """
        for byte, search in self._searches:
            if byte in body and search(body):
                return True
        if self._hidden is not None and self._find(body):
            return True
        return bool(self._secrets) and self._may_contain_encoded(body)

    def _may_contain_encoded(self, body: bytes) -> bool:
        """Return whether the bytes may contain a secret as base64 or in escapes throughout."""
        for secret in self._odd_secrets:
            if all(body.find(needle) >= 0 for needle in secret.needles):
                return bool(self._find(body))
        runs, word, end = body.translate(_TO_BASE64_RUNS), b"a" * self._min_word, 0
        while (start := runs.find(word, end)) >= 0:
            end = runs.find(b"\0", start)
            end = len(runs) if end < 0 else end
            if self._find(body[start:end]):
                return True
        return False

    # -- finding known secrets -----------------------------------------------------------------------------

    def _find(self, data: bytes) -> list[Span]:
        """Return the places of secrets, in any encoding."""
        return [*self._find_values(data, is_encoded=False), *self._find_encoded(data, 0, {hash(data): 0})]

    def _find_encoded(self, data: bytes, nesting: int, known: dict[int, int]) -> list[Span]:
        """Return the places of encoded secrets. `known` has the hashes of the text with escapes undone, and the nesting
        of the search: undone in another order, escapes often give the same text.
        """
        spans: list[Span] = []
        for escapes in self._escapes:
            decoded = escapes.undo(data)
            if decoded is not None and known.get(hash(decoded.data), MAX_NESTING + 1) > nesting + 1:
                known[hash(decoded.data)] = nesting + 1
                spans += self._find_decoded(decoded, nesting + 1, known)
        for decoded in from_base64(data, self._base64_words):
            depth = nesting + 1 if is_text(decoded.data) else MAX_NESTING
            spans += self._find_decoded(decoded, depth, {})
        return spans

    def _find_decoded(self, decoded: Decoded, nesting: int, known: dict[int, int]) -> list[Span]:
        spans = self._find_values(decoded.data, is_encoded=True)
        if nesting < MAX_NESTING:
            spans += self._find_encoded(decoded.data, nesting, known)
        return [Span(*decoded.span(span.start, span.end), span.placeholder) for span in spans]

    def _find_values(self, data: bytes, *, is_encoded: bool) -> list[Span]:
        spans: list[Span] = []
        for secret in self._secrets:
            value = secret.value
            placeholder = secret.encoded_placeholder if is_encoded else secret.placeholder
            start = data.find(value)
            while start >= 0:
                spans.append(Span(start, start + len(value), placeholder))
                start = data.find(value, start + 1)
        if self._hidden is not None:
            word = _HIDDEN_ENCODED if is_encoded else _HIDDEN
            spans += [Span(*match.span(), word) for match in self._hidden.finditer(data)]
        return spans

    def _find_begun(self, data: bytes, nesting: int = 0) -> int:
        """Return the begin of a secret that the end of the text may cut off, else the length."""
        first = len(data)
        for secret in self._secrets:
            value = secret.value
            start = data.find(value[:1], max(0, len(data) - len(value) + 1))
            while start >= 0 and not value.startswith(data[start:]):
                start = data.find(value[:1], start + 1)
            first = first if start < 0 else min(first, start)
        if nesting < MAX_NESTING:
            for decoded in filter(None, (escapes.undo(data) for escapes in self._escapes)):
                begin = self._find_begun(decoded.data, nesting + 1)
                if begin < len(decoded.data):
                    first = min(first, decoded.source(begin)[0])
        return first

    # -- redacting -----------------------------------------------------------------------------------------

    def redact_text(self, text: str) -> str:
        redacted = self._redact_text(text)
        self.redactions += redacted != text
        return redacted

    def redact_bytes(self, data: bytes) -> bytes:
        """Overwrite the secrets in foreign bytes. The number of bytes stays the same: the format may count bytes."""
        if not self.may_contain_secret(data):
            return data
        text, masked = data.decode("latin-1"), bytearray(data)
        spans = [(span.start, span.end) for span in self._find(data)]
        spans += [match.span() for match in _PATTERNS.finditer(text)]
        for start, end in [*spans, *_private_keys(text)]:
            masked[start:end] = REDACTED[: end - start].ljust(end - start, "*").encode()
        return bytes(masked)

    def _redact_packed(self, text: str) -> str:
        try:
            data = unpack_bytes(text)
        except ValueError:  # a word before a full stop
            return text
        redacted = self.redact_bytes(data)
        return text if redacted == data else pack_bytes(redacted)

    def _redact_text(self, text: str) -> str:
        if text.endswith(".") and _PACKED(text):
            text = self._redact_packed(text)
        data = text.encode("utf-8", "surrogatepass")
        if not self.may_contain_secret(data):
            return text
        if spans := self._find(data):
            text = _replace_spans(data, spans)
        text = _PATTERNS.sub(REDACTED, text)
        end, pieces = 0, []
        for start, next_end in _private_keys(text):
            pieces += [text[end:start], REDACTED]
            end = next_end
        return "".join([*pieces, text[end:]]) if pieces else text

    def redact_word(self, text: str | None) -> str | None:
        """Redact a short recurring text, such as a model's name."""
        if text is None:
            return None
        redacted = self._words.get(text)
        if redacted is None:
            if len(self._words) >= MAX_WORDS:
                self._words.clear()
            self._words[text] = redacted = self.redact_text(text)
        return redacted

    def check_name(self, name: object, field: str) -> None:
        """Raise SecretInName for an id or a name with a secret: two redacted names could become the same."""
        if isinstance(name, str) and (redacted := self.redact_text(name)) != name:
            raise SecretInName(field, redacted)

    def check_options(self, options: Mapping[str, Any] | None) -> None:
        """Raise SecretInName for a model's option with a secret: redacted, the next call would send another value."""
        for name, value in (options or {}).items():
            if (redacted := self.redact_options(value)) != value:
                raise SecretInName(f"option {name}", str(redacted))

    def safe_length(self, text: str) -> int:
        """Return how much of a stream's text may be shown: no later text can turn the shown part into a secret.

        The last word may become a key; a multi-line key, or a known secret, may have begun.
        """
        end = len(text.rstrip(_WORD_LETTERS))
        keys = list(_private_keys(text)) if end else []
        rest = keys[-1][1] if keys else 0
        unfinished = (_KEY_BEGINS(text, rest) or _KEY_MAY_BEGIN(text, rest)) if end else None
        if unfinished is not None and len(text) - unfinished.start() <= MAX_KEY_LENGTH:
            end = min(end, unfinished.start())
        if not end:
            return 0  # one long word or a multi-line key: do not search it again for every chunk
        spans = [*(match.span() for match in _PATTERNS.finditer(text)), *keys]
        if self._secrets:
            before = max(0, len(text) - MAX_ENCODED_LENGTH)
            data = text[before:].encode("utf-8", "surrogatepass")
            escape = begun_escape(text)

            def place(offset: int) -> int:
                return before + len(data[:offset].decode("utf-8", "surrogatepass"))

            # With the last escape, which may be whole, and without it.
            whole = data[: len(text[before:escape].encode("utf-8", "surrogatepass"))]
            end = min(end, escape, place(self._find_begun(data)), place(self._find_begun(whole)))
            if self.may_contain_secret(data):
                spans += [(place(span.start), place(span.end)) for span in self._find(data)]
        for start, stop in sorted(spans, reverse=True):
            if start < end < stop:
                end = start
        return end

    def redact_json(self, value: Any) -> Any:
        """Redact every string within a JSON value, keys too."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {self.redact_json(key): self.redact_json(item) for key, item in value.items()}
        return [self.redact_json(item) for item in value] if isinstance(value, list | tuple) else value

    def redact_options(self, value: Any) -> Any:
        """Redact options of a call or a hosted tool: also the tokens and headers that a provider passes to a server."""
        return self.redact_json(_without_proofs(value))

    def redact_payload(self, payload: Payload) -> Payload:
        match payload:
            case Message(parts=parts, details=details):
                return replace(
                    payload, parts=tuple(map(self._part, parts)), details=self.redact_json(details)
                )
            case Note(data=data, state=state):
                return replace(payload, data=self.redact_json(data), state=self.redact_json(state))
            case Settings():
                fields = {name: getattr(payload, name) for name in ("prompt", "prompt_patch", "limits")}
                tools = payload.tool_definitions
                if tools is not None:
                    tools = replace(tools, names=tuple(self.redact_json(tools.names)))
                options = self.redact_options(payload.options)
                return replace(payload, tool_definitions=tools, options=options, **self.redact_json(fields))
            case Compaction(files_read=read, files_changed=changed):
                files = {
                    "files_read": tuple(self.redact_json(read)),
                    "files_changed": tuple(self.redact_json(changed)),
                }
                return replace(payload, summary=self.redact_text(payload.summary), **files)
            case BranchSummary():
                return replace(payload, summary=self.redact_text(payload.summary))
        return payload

    def _part(self, part: Any) -> Any:
        match part:
            case Text(text=text) | Reasoning(text=text) | ProviderBlock(text=text):
                return replace(part, text=self.redact_text(text))
            case ToolCall(name=name, arguments=arguments, malformed=malformed, placeholders=placeholders):
                redacted = self.redact_json(arguments)
                new = _placeholders(redacted) - _placeholders(arguments)
                return replace(
                    part,
                    name=self.redact_text(name),
                    arguments=redacted,
                    malformed=self.redact_json(malformed),
                    placeholders=(*placeholders, *sorted(new.elements())),
                )
            case ToolResult(content=content, details=details):
                return replace(
                    part, content=tuple(map(self._part, content)), details=self.redact_json(details)
                )
            case Media(name=name) | Attachment(name=name):
                return replace(part, name=self.redact_json(name))
        return part


class NullRedactor(Redactor):
    """Leaves all text unchanged: for a framework's own state, which must come back unchanged."""

    def hiding(self, words: Iterable[str]) -> Redactor:
        return Redactor().hiding(words)

    def may_contain_secret(self, body: bytes) -> bool:
        return False

    def redact_text(self, text: str) -> str:
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        return data

    def redact_options(self, value: Any) -> Any:
        return value

    def safe_length(self, text: str) -> int:
        return len(text)


def _whole_words(words: Iterable[str]) -> re.Pattern[bytes]:
    """Return a search for words that no letter or digit stands beside. It is linear: it tries each word at each place."""
    forms: set[bytes] = set()
    for word in words:
        check_text(word, "hide")
        if len(word) < MIN_WORD_LENGTH or word != word.strip():
            raise InvalidArgument(
                "hide", word, f"a word of {MIN_WORD_LENGTH} characters or more, without spaces around"
            )
        for text in (
            normalize("NFC", word),
            normalize("NFD", word),
        ):  # as a keyboard and as a file name have it
            forms |= {form.encode() for form in (text, text.lower(), text.upper(), text.title())}
    longest_first = b"|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
    return re.compile(
        rb"(?<![0-9A-Za-z\x80-\xff])(?:%s)(?![0-9A-Za-z\x80-\xff])" % longest_first, re.IGNORECASE
    )


def _replace_spans(data: bytes, spans: Iterable[Span]) -> str:
    """Replace the secrets by placeholders. Of overlapping secrets the first, or longer, stands for all."""
    pieces: list[bytes] = []
    end = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.start >= end:
            pieces += [data[end : span.start], span.placeholder.encode("utf-8", "surrogatepass")]
        end = max(end, span.end)
    return b"".join([*pieces, data[end:]]).decode("utf-8", "surrogatepass")


def _private_keys(text: str) -> Iterator[tuple[int, int]]:
    """Yield where multi-line keys begin and end. Where none ends any more, none is looked for: the search is linear."""
    begin = _KEY_BEGINS(text)
    while begin is not None and (end := _KEY_ENDS(text, begin.end())) is not None:
        yield begin.start(), end.end()
        begin = _KEY_BEGINS(text, end.end())


def _without_proofs(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_proofs(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _hidden(name, item) for name, item in value.items()}


def _hidden(name: str, item: Any) -> Any:
    if name in _PROOFS and isinstance(item, str):
        return REDACTED
    if name == "headers" and isinstance(item, dict):
        return dict.fromkeys(item, REDACTED)
    return _without_proofs(item)


def _placeholders(value: Any) -> Counter[str]:
    """Count the placeholders of secrets within a JSON value."""
    return Counter(match for text in strings_in(value) for match in _PLACEHOLDER.findall(text))


def strings_in(value: Any) -> Iterator[str]:
    """Yield every string within a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)
