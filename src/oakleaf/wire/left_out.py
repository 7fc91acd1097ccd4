"""What a request to a provider leaves out of a context, in words: options, tools and fields of other providers."""

from __future__ import annotations

from collections import Counter

from oakleaf.core.context import Context, endpoint_of
from oakleaf.core.tool_definitions import read_tools
from oakleaf.errors import plural
from oakleaf.wire.base import Blobs
from oakleaf.wire.openai_chat.request import issuer_of
from oakleaf.wire.options import left_out_options


def left_out(provider: str, context: Context, blobs: Blobs) -> list[str]:
    """Return a line for each option and tool that a request lacks, and one for each provider whose fields it lacks."""
    lines = [f"option {reason}" for reason in left_out_options(provider, context.settings.options).values()]
    own = {provider}
    if provider == "openai-chat":
        own.add(issuer_of(endpoint_of(context.settings, provider).host))
    for spec in read_tools(context.settings.tool_definitions, blobs) or ():
        if spec.issuer is not None and spec.issuer not in own:
            what = "is defined by" if spec.hosted else "has fields of"
            lines.append(f"tool {spec.name} {what} {spec.issuer}")
    evidence = [*context.system_evidence, *(item.evidence for item in context.items)]
    foreign = Counter(each.issuer for each in evidence if each is not None and each.issuer not in own)
    lines += [f"{plural(count, 'message')} with fields of {issuer}" for issuer, count in foreign.items()]
    return lines
