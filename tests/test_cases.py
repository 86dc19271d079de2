"""Small models as users write them, one for each kind of mistake that a reading can make.

`cases` holds the models with what must hold: rules that follow the width, sums scaled as by hand, a
plan that is the same at every size, or words that say what does not transfer.
"""

from __future__ import annotations

import pytest
from cases import CASES
from cases.kit import Case, run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    outcome = run(case)
    assert not outcome.wrong, str(outcome)
