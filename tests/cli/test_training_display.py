"""The lines that training prints."""

from __future__ import annotations

import io
import math

from embershard.cli.training_display import TrainingDisplay
from embershard.models.train_result import Evaluation


def shown(evaluation: Evaluation, *, is_best: bool) -> str:
    stream = io.StringIO()
    display = TrainingDisplay(lambda: None, 10, stream)  # type: ignore[arg-type, return-value]
    display.on_evaluation(evaluation, is_best=is_best)
    return stream.getvalue()


def test_an_evaluation_is_a_line_that_says_why_a_number_is_missing() -> None:
    measured = Evaluation(1200, 1, 0.75, 0.5, 100)
    assert shown(measured, is_best=True) == "step 1,200: AUC 0.7500, log loss 0.5000 (best so far)\n"
    one_class = Evaluation(20, 1, math.nan, 0.5, 100, "all labels are 0: AUC needs both classes")
    expected = "step 20: AUC - (all labels are 0: AUC needs both classes), log loss 0.5000\n"
    assert shown(one_class, is_best=False) == expected
    nothing = Evaluation(20, 1, math.nan, math.nan, 0, "no examples")
    assert shown(nothing, is_best=False) == "step 20: nothing measured: the evaluation rows are none\n"
