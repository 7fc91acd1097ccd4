"""What a plugin does with sessions beyond the public face: the names that its author may rely on.

Values and contracts are public where they stand: `oakleaf.core`, `oakleaf.wire`, `oakleaf.stores.base`, `oakleaf.ingest`.
Here are the names for doing. They load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oakleaf.late_names import late_names

_HOMES = {
    "oakleaf.models.prices": ["price"],
}
__getattr__, __all__ = late_names(__name__, _HOMES)

if TYPE_CHECKING:
    from oakleaf.models.prices import price as price
