"""The host's entries beside the inputs, prepared for the replay.

Notes, branch summaries and settings are repeated, without the overrides of the replay. Compactions are
repeated only if the recording answers: a summary of another model's answers would be wrong about the new
history, and the loop compacts when needed. Entries of a newer Oakleaf are left out: this version cannot write
them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Compaction, Entry, Payload, Settings, Uncompaction, Unknown
from oakleaf.replay.recording import Recording


class HostEntries:
    """Turns the host's entries of the source into drafts for the replay."""

    def __init__(
        self,
        recording: Recording,
        overrides: Settings,
        *,
        uses_recorded_answers: bool,
        has_own_tools: bool = False,
    ) -> None:
        self.recording, self.overrides = recording, overrides
        self.uses_recorded_answers, self.has_own_tools = uses_recorded_answers, has_own_tools

    def drafts(self, entries: Iterable[Entry], path: Sequence[Entry]) -> list[Draft]:
        """Return the drafts of the source's host entries, to append after `path`."""
        drafts: list[Draft] = []
        for entry in entries:
            payload = self._payload(entry, path, len(drafts))
            if payload is not None:
                drafts.append(Draft(payload, entry.model, entry.finish, entry.evidence))
        return drafts

    def _payload(self, entry: Entry, path: Sequence[Entry], ahead: int) -> Payload | None:
        payload = entry.payload
        if isinstance(payload, Unknown):
            return None
        if isinstance(payload, Settings):
            return self._settings(payload)
        if isinstance(payload, Compaction | Uncompaction) and not self.uses_recorded_answers:
            return None
        if isinstance(payload, Compaction):
            return self._compaction(payload, path, ahead)
        if isinstance(payload, Uncompaction):
            return replace(payload, cancels=self._seq_in_replay(payload.cancels, path, ahead))
        return payload

    def _compaction(self, compaction: Compaction, path: Sequence[Entry], ahead: int) -> Compaction:
        """Return the compaction with positions of the replay."""
        lengths = [
            (position, length)
            for seq, length in compaction.shortened
            for position in self._result_seqs_in_replay(seq, path)
        ]
        kept_input = compaction.kept_input
        return replace(
            compaction,
            first_kept=self._seq_in_replay(compaction.first_kept, path, ahead),
            kept_input=self._seq_in_replay(kept_input, path, ahead) if kept_input else 0,
            shortened=tuple(lengths),
        )

    def _result_seqs_in_replay(self, seq: int, path: Sequence[Entry]) -> list[int]:
        """Return the seqs in the replay of the results of one entry of the source.

        Counts from the first result.
        """
        source = self.recording.path
        if not 0 < seq <= len(source):
            return []
        first = _count_results(source[: seq - 1])
        last = first + _count_results(source[seq - 1 : seq])
        seqs = [entry.seq for entry in path for _ in range(_count_results([entry]))]
        return sorted(set(seqs[first:last]))

    def _settings(self, settings: Settings) -> Settings | None:
        """Return settings without the replay's overrides, and a new prompt with the replay's patch; None if
        nothing is left.

        Overridden are the model, prompt, options, maximum of messages and definitions of tools.
        """
        overrides, recorded = self.overrides, settings
        if overrides.model is not None:
            settings = replace(settings, model=None)
        if overrides.prompt is not None:
            settings = replace(settings, prompt=None, prompt_patch=None)
        elif overrides.prompt_patch is not None and settings.prompt is not None:
            patches = filter(None, [settings.prompt_patch, overrides.prompt_patch])
            settings = replace(settings, prompt_patch="\n\n".join(patches))
        if overrides.options is not None and settings.options is not None:
            options = {
                name: value for name, value in settings.options.items() if name not in overrides.options
            }
            settings = replace(settings, options=options or None)
        if overrides.max_messages is not None:
            settings = replace(settings, max_messages=None)
        if self.has_own_tools and not self.uses_recorded_answers:
            settings = replace(settings, tool_definitions=None)
        return None if settings == Settings() and settings != recorded else settings

    def _seq_in_replay(self, seq: int, path: Sequence[Entry], ahead: int) -> int:
        """Return the seq in the replay of an entry of the source; `ahead` drafts will be appended to `path` first.

        Results that are one entry in the source may be several here; everything else is in the same order.
        """
        source = self.recording.path
        is_longer = len(path) > len(source)
        if not path or (not is_longer and path[-1].entry_id == source[len(path) - 1].entry_id):
            return seq  # the same entries so far
        source_seqs = [entry.seq for entry in source if _is_one_entry(entry)]
        replay_seqs = [entry.seq for entry in path if _is_one_entry(entry)]
        end = len(path) + 1
        replay_seqs.extend(range(end, end + ahead + 1))
        return replay_seqs[min(bisect_left(source_seqs, seq), len(replay_seqs) - 1)]


def _count_results(entries: Sequence[Entry]) -> int:
    return sum(len(entry.message.results) for entry in entries if entry.message is not None)


def _is_one_entry(entry: Entry) -> bool:
    """Whether source and replay each hold exactly one such entry.

    Results may be several; unknown kinds are not replayed.
    """
    return entry.role != "tool" and not isinstance(entry.payload, Unknown)
