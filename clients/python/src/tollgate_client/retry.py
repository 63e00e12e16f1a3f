"""How long to wait before a call is made again. Pure: no clock is read here, and nobody sleeps."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_WHOLE_SECONDS = re.compile(r"[0-9]{1,15}")
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,')
_PARAMETER = re.compile(r";\s*([a-z*][a-z0-9_.*-]*)=([0-9]{1,15})(?![0-9.])")


@dataclass(frozen=True)
class Retry:
    """After a network error or while a store is down: wait 1, 2, 4 … 32 s, ±25 %, and ask again.

    A longer wait that the server asked for is honoured. All of it, waits and attempts, fits into
    `total_seconds`: a wait that would not is not begun. Waiting for one of the client's own
    connections counts as well.
    """

    total_seconds: float = 30.0
    first_seconds: float = 1.0
    cap_seconds: float = 32.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        # Each written so that what is no number at all is refused too.
        if not 0 < self.first_seconds <= self.cap_seconds < math.inf:
            raise ValueError("first_seconds must be above 0 and at most cap_seconds")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be from 0 to below 1")
        if not self.total_seconds > 0:
            raise ValueError("total_seconds must be above 0; no retries at all are `retry=None`")

    def delay_seconds(self, failures: int, told_seconds: float | None = None) -> float:
        """The wait after so many failures in a row; the server asked for `told_seconds`."""
        doublings = min(failures - 1, 62)
        plain = min(self.first_seconds * 2.0**doublings, self.cap_seconds)
        delay = plain * random.uniform(1 - self.jitter, 1 + self.jitter)
        return max(delay, told_seconds or 0.0)


def told_seconds(headers: Mapping[str, str]) -> float | None:
    """The wait an answer asks for: `Retry-After`, or else the `RateLimit` of what is used up."""
    asked = headers.get("retry-after", "").strip()
    if _WHOLE_SECONDS.fullmatch(asked):
        return float(asked)
    if asked:
        # A date counts from the server's own, so that a wrong clock here does no harm.
        try:
            wait = parsedate_to_datetime(asked) - parsedate_to_datetime(headers.get("date", ""))
            return max(wait.total_seconds(), 0.0)
        except (TypeError, ValueError):
            pass
    return _exhausted_seconds(headers.get("ratelimit", ""))


def _exhausted_seconds(ratelimit: str) -> float | None:
    """The longest `t` of the limits with nothing remaining (`"ip";r=0;t=42, "email";r=2;t=9`)."""
    # Names may hold anything, commas too: they are taken out before the list is cut.
    plain = _STRING_OR_COMMA.sub(lambda found: "," if found[0] == "," else '""', ratelimit)
    waits = []
    for item in plain.split(","):
        parameters = dict(_PARAMETER.findall(item))
        if parameters.get("r") == "0" and "t" in parameters:
            waits.append(float(parameters["t"]))
    return max(waits, default=None)
