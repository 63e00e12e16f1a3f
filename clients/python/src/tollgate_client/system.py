"""How the server is, and who is refused most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .call import Call, Section, document_of
from .errors import TollgateError
from .flow import Flow, Transport, operation


class System(Section[Transport]):
    """Health, metrics, offenders and alerts."""

    @operation
    def ready(self) -> Flow[bool]:
        """Whether the server and its store answer now. Nothing is retried, nothing raised."""
        now = Section(self._transport, replace(self._settings, retry=None))
        try:
            response = yield from now._answer(Call("GET", "/readyz", dict))
        except TollgateError:
            return False
        return response.is_success

    @operation
    def metrics(self) -> Flow[str]:
        """The Prometheus text."""
        response = yield from self._answer(Call("GET", "/metrics", dict))
        if not response.is_success:
            document_of(response, require_success=True)
        return response.text

    @operation
    def offenders(
        self, *, since: str | None = None, limit: int | None = None
    ) -> Flow[Mapping[str, Any]]:
        """Who was refused most within `since` (`1h`), as the server tells it."""
        params = {"since": since, "limit": limit}
        return self._call(Call("GET", "/admin/offenders", dict, params=params))

    @operation
    def alerts(
        self, *, cursor: str | None = None, limit: int | None = None
    ) -> Flow[Mapping[str, Any]]:
        """The alerts that were raised, newest first, as the server tells it.

        `cursor` is the `next_cursor` of the page before; the last page has none.
        """
        params = {"cursor": cursor, "limit": limit}
        return self._call(Call("GET", "/admin/alerts", dict, params=params))
