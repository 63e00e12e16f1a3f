"""What can go wrong. A refused check is not here: it is a `Decision` with `allowed` false.

`Refused` is raised only where somebody asked for an exception: by `Decision.require()` and by the
decorator `limited`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decisions import Decision


class TollgateError(Exception):
    """The base of everything this package raises."""


class Refused(TollgateError):
    """A decision was not to allow it; `decision` says when it will be."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.sentence)
        self.decision = decision


class NotIdentified(TollgateError):
    """Raised by a subject function that cannot tell who is asking; the middleware answers 401."""


class Unreachable(TollgateError):
    """The server gave no answer in the time there was. The cause is httpx's own error."""


class BadAnswer(TollgateError):
    """Something answered that does not speak as Tollgate does: a proxy, or another version."""


class ApiError(TollgateError):
    """The server's problem document (RFC 9457), raised."""

    def __init__(self, status: int, document: Mapping[str, Any], retry_after: float | None) -> None:
        self.status = status
        self.document = document
        self.retry_after = retry_after
        super().__init__(f"{status} {self.title}: {self.detail}" if self.detail else self.title)

    @property
    def type(self) -> str:
        return str(self.document.get("type", "about:blank"))

    @property
    def title(self) -> str:
        return str(self.document.get("title", f"status {self.status}"))

    @property
    def detail(self) -> str:
        return str(self.document.get("detail", ""))

    @property
    def field(self) -> str | None:
        """The member, header or parameter at fault, where there is one."""
        return self.document.get("field")

    @property
    def request_id(self) -> str | None:
        return self.document.get("request_id")


class BadInput(ApiError):
    """400, 413 or 422: the request itself is at fault; the same again will fail again."""


class NotAuthorised(ApiError):
    """401 or 403: no or an unknown token, one of another scope, or a disabled API key."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: an event's id with other inputs, a cancelled slot, a change made meanwhile."""


class QuotaExceeded(ApiError):
    """429 to something that is not a check, such as `send`; `retry_after` is in seconds."""


class Unavailable(ApiError):
    """5xx: the store cannot answer, the server is busy, or a schedule is full up to its horizon."""


def error_of(status: int, document: Mapping[str, Any], retry_after: float | None) -> ApiError:
    """The exception for a status."""
    if status >= 500:
        return Unavailable(status, document, retry_after)
    kinds: dict[int, type[ApiError]] = {
        400: BadInput,
        401: NotAuthorised,
        403: NotAuthorised,
        404: NotFound,
        409: Conflict,
        413: BadInput,
        422: BadInput,
        429: QuotaExceeded,
    }
    return kinds.get(status, ApiError)(status, document, retry_after)
