"""Where the pages that people read lie in a workspace, by the documents that they show.

A page is written when its stage makes the document, and never by a later look at it.
"""

from __future__ import annotations

import datetime

from headway.data_contracts.store.documents import Link


def contract_page(receipt: Link) -> str:
    return f"reports/contract-{receipt.sha256[:16]}.html"


def refusal_page(receipt: Link, evaluated_unix_s: float) -> str:
    """What the clock refused, at that moment; the receipt itself knows no clock."""
    moment = datetime.datetime.fromtimestamp(evaluated_unix_s, datetime.UTC)
    return f"reports/contract-{receipt.sha256[:16]}-refused-{moment:%Y%m%dT%H%M%SZ}.html"


def evaluation_page(report: Link) -> str:
    return f"reports/evaluation-{report.sha256[:16]}.html"
