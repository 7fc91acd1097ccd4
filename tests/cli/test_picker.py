"""The picker: which row is marked and what is drawn. `test_chat` uses it at a terminal."""

from __future__ import annotations

import click

from oakleaf.cli.picker import Picker


class TestPicker:
    def test_it_moves_over_rows_that_cannot_be_picked_and_stops_at_the_ends(self) -> None:
        picker = Picker(["head", "a", "head", "b", "c", "head"], skip=[0, 2, 5], start=1)
        positions = []
        for steps in (1, 1, 1, -1, -1, -1, 99, -99):
            picker.move(steps)
            positions.append(picker.picked)
        assert positions == [3, 4, 4, 3, 1, 1, 4, 1]

    def test_all_words_of_the_filter_must_match_and_nothing_may(self) -> None:
        picker = Picker(["Order 41", "order 42", "Table"])
        picker.set_filter("42 ORD")
        assert (picker.matches, picker.picked) == ([1], 1)
        picker.set_filter("none")
        picker.move(1)
        assert picker.picked is None

    def test_it_never_draws_more_than_the_terminal_holds(self) -> None:
        rows = [f"row {n} \x1b[2J wide 漢字 " * 20 for n in range(200)]
        picker = Picker(rows, start=150)
        for columns, height, has_filter in [(80, 24, True), (20, 6, False), (8, 5, True)]:
            lines = [
                click.unstyle(line) for line in picker.lines("Which?", columns, height, has_filter=has_filter)
            ]
            assert len(lines) <= height
            assert all(len(line) <= columns for line in lines)
            assert [line[:6] for line in lines if line.startswith("❯")] == ["❯ row "]
            assert not any("\x1b" in line for line in lines)
        assert "151 of 200" in picker.lines("Which?", 80, 24, has_filter=True)[-1]
