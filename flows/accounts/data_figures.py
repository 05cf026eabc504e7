"""What the contract said of the data that a flow run took: rows, those left out, rules that do not hold, drift."""

from __future__ import annotations

import contextlib
from typing import Self

from pydantic import BaseModel, ValidationError

from headway.flows.accounts.figures import Amount, Count, Text
from headway.training.observe.ledger import Event

VERDICTS = "validate.verdicts"


class DataFigures(BaseModel):
    """Of the newest contract's verdict of a flow run, also one that refused."""

    num_rows: Count
    """Those that remain."""
    num_quarantined: Count
    broken: dict[Text, list[Text]]
    """By severity, the first rules that do not hold; freshness goes by the clock, at each retrain anew."""
    num_broken: dict[Text, Count]
    drift: dict[Text, Amount]
    """By rule, the largest population stability indices beside the last accepted data: above 0.25 is a shift."""

    @classmethod
    def of_event(cls, event: Event) -> Self | None:
        """None: it is not what the stage writes."""
        with contextlib.suppress(ValidationError):
            return cls.model_validate(event)
        return None

    @property
    def quarantined_ratio(self) -> float:
        """Of all rows those that were left out."""
        return self.num_quarantined / max(self.num_rows + self.num_quarantined, 1)
