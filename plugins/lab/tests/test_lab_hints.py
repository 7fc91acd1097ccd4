"""Every command that a message of the lab suggests can be typed as it is printed."""

from __future__ import annotations

import pytest

from support.situations import Prepare, Situation, branched, nothing, trashed


def cohort(here: Situation) -> None:
    here.run("lab", "cohort", "mine", "ses_case")


SITUATIONS: list[tuple[Prepare, str]] = [
    (nothing, "lab show"),
    (nothing, "lab show nobody"),
    (nothing, "lab cohort"),
    (nothing, "lab cohort nobody --rm"),
    (nothing, "lab cohort mine ses_case"),
    (nothing, "lab run zebra --yes"),
    (nothing, "lab run ses_case --model nobody"),
    (nothing, "lab promote ses_case cases"),
    (nothing, "test ."),
    (cohort, "lab cohort mine --rm --yes"),
    (trashed, "lab run ses_case --yes"),
    (branched, "lab promote ses_case@1:5 cases"),
]


@pytest.mark.parametrize(
    ("prepare", "command"),
    SITUATIONS,
    ids=[f"{prepare.__name__}: {command}" for prepare, command in SITUATIONS],
)
def test_every_command_that_the_lab_suggests_runs_as_printed(
    situation: Situation, prepare: Prepare, command: str
) -> None:
    prepare(situation)
    situation.assert_suggestions_run(command)


def test_a_title_of_several_words_is_quoted_in_a_suggestion(situation: Situation) -> None:
    with situation.store as store:
        store.session("ses_case").title("Lost order")
    branched(situation)
    assert "oakleaf fork 'Lost order@1:5'" in situation.run("lab", "promote", "Lost order@1:5", "cases")[1]
