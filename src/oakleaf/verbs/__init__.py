"""Verbs: operations on sessions, each declared once. Builds on `oakleaf.ext`, like a plugin.

`base` says what a verb is, `fields` what a parameter is, `screen` what people read, `registry` which verbs there are.
The names load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf.verbs.base": ["Caller", "Verb"],
    "oakleaf.verbs.fields": [
        "Count",
        "File",
        "Help",
        "LongText",
        "ModelName",
        "Names",
        "Number",
        "OptionValues",
        "Pairs",
        "Ref",
        "Refs",
        "TrashedRef",
        "TrashedRefs",
        "Words",
    ],
    "oakleaf.verbs.reference": ["Position"],
    "oakleaf.verbs.screen": ["Line", "Screen", "Table", "style"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf.verbs.base import Caller as Caller
    from oakleaf.verbs.base import Verb as Verb
    from oakleaf.verbs.fields import Count as Count
    from oakleaf.verbs.fields import File as File
    from oakleaf.verbs.fields import Help as Help
    from oakleaf.verbs.fields import LongText as LongText
    from oakleaf.verbs.fields import ModelName as ModelName
    from oakleaf.verbs.fields import Names as Names
    from oakleaf.verbs.fields import Number as Number
    from oakleaf.verbs.fields import OptionValues as OptionValues
    from oakleaf.verbs.fields import Pairs as Pairs
    from oakleaf.verbs.fields import Ref as Ref
    from oakleaf.verbs.fields import Refs as Refs
    from oakleaf.verbs.fields import TrashedRef as TrashedRef
    from oakleaf.verbs.fields import TrashedRefs as TrashedRefs
    from oakleaf.verbs.fields import Words as Words
    from oakleaf.verbs.reference import Position as Position
    from oakleaf.verbs.screen import Line as Line
    from oakleaf.verbs.screen import Screen as Screen
    from oakleaf.verbs.screen import Table as Table
    from oakleaf.verbs.screen import style as style
