"""What the host had put into a session beside its inputs, made fit to be put in again.

Notes, branch summaries and settings come back as they were, less what the replay overrides. Compactions come back
only where the recording answers: a summary of what another model said would be a lie about this history, and the
loop makes one of its own when it has to. What a newer Bough wrote is left out: this one cannot write it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ..core.drafts import Draft
from ..core.entries import Compaction, Entry, Payload, Settings, Uncompaction, Unknown
from .recording import Recording


class HostEntries:
    def __init__(self, recording: Recording, overrides: Settings, *, uses_recorded_answers: bool) -> None:
        self.recording, self.overrides, self.uses_recorded_answers = (
            recording,
            overrides,
            uses_recorded_answers,
        )

    def drafts(self, entries: Iterable[Entry], path: Sequence[Entry]) -> list[Draft]:
        """What to append behind `path` for these entries of the source."""
        found: list[Draft] = []
        for entry in entries:
            payload = self._payload(entry, path, len(found))
            if payload is not None:
                found.append(Draft(payload, entry.model, entry.finish, entry.evidence))
        return found

    def _payload(self, entry: Entry, path: Sequence[Entry], ahead: int) -> Payload | None:
        payload = entry.payload
        if isinstance(payload, Unknown):
            return None
        if isinstance(payload, Settings):
            return self._settings(payload)
        if isinstance(payload, Compaction | Uncompaction) and not self.uses_recorded_answers:
            return None
        if isinstance(payload, Compaction):
            return replace(payload, first_kept=self._place(payload.first_kept, path, ahead))
        if isinstance(payload, Uncompaction):
            return replace(payload, cancels=self._place(payload.cancels, path, ahead))
        return payload

    def _settings(self, settings: Settings) -> Settings | None:
        """What the replay was told to try wins over what was set later on."""
        over, before = self.overrides, settings
        if over.model is not None:
            settings = replace(settings, model=None)
        if over.prompt is not None or over.prompt_patch is not None:
            settings = replace(settings, prompt=None, prompt_patch=None)
        return None if settings == Settings() and settings != before else settings

    def _place(self, seq: int, path: Sequence[Entry], ahead: int) -> int:
        """Where that entry of the source stands in the replay; `ahead` entries are about to follow `path`.

        Results may have come in one entry then and come one by one now; all else stands in the same order.
        """
        source = self.recording.path
        is_longer = len(path) > len(source)
        if not path or (not is_longer and path[-1].entry_id == source[len(path) - 1].entry_id):
            return seq  # the same entries so far
        before = [entry.seq for entry in source if _comes_alone(entry)]
        now = [entry.seq for entry in path if _comes_alone(entry)]
        end = len(path) + 1
        now.extend(range(end, end + ahead + 1))
        return now[min(bisect_left(before, seq), len(now) - 1)]


def _comes_alone(entry: Entry) -> bool:
    """Whether it is one entry in both: results may be several, and kinds we do not know come in the kept part only."""
    return entry.role != "tool" and not isinstance(entry.payload, Unknown)
