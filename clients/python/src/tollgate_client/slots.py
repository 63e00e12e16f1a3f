"""When may this happen? Slots of events, and the windows they lie in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .call import Call, Section, given, instant, segment
from .errors import ApiError, error_of
from .flow import Flow, Page, Transport, listing, operation
from .reading import read, read_list


@dataclass(frozen=True)
class Event:
    """What asks for a slot in a batch."""

    event_id: str
    config_name: str | None = None
    requested_time: datetime | str | None = None

    def _document(self) -> dict[str, Any]:
        return given(
            eventId=self.event_id,
            configName=self.config_name,
            requestedTime=instant(self.requested_time),
        )


@dataclass(frozen=True)
class Slot:
    """When an event may happen."""

    event_id: str
    scheduled_time: datetime
    delay_ms: int


@dataclass(frozen=True)
class AuditedSlot:
    """A slot with all that is kept of it."""

    event_id: str
    config_name: str
    config_version: int
    requested_time: datetime
    scheduled_time: datetime
    delay_ms: int
    created_at: datetime
    cancelled_at: datetime | None = None


@dataclass(frozen=True)
class Window:
    """A window in which something is given; `max` is as it is now."""

    start: datetime
    end: datetime
    count: int
    max: int


@dataclass(frozen=True)
class Drift:
    """A window whose count is not the number of its slots."""

    start: datetime
    counted: int
    slots: int


@dataclass(frozen=True)
class Recount:
    """What counting all slots again found; no drifts is as it should be."""

    config_name: str
    windows: int
    slots: int
    drifts: tuple[Drift, ...]


class Slots(Section[Transport]):
    """`client.slots`"""

    @operation
    def assign(
        self,
        event_id: str,
        *,
        config_name: str | None = None,
        requested_time: datetime | str | None = None,
    ) -> Flow[Slot]:
        """Gives an event its own instant; asked again, the same one."""
        event = Event(event_id, config_name, requested_time)
        return self._call(
            Call("POST", "/api/v1/slots", lambda answer: read(Slot, answer), body=event._document())
        )

    @operation
    def assign_batch(self, events: Iterable[Event]) -> Flow[tuple[Slot | ApiError, ...]]:
        """Up to 1000 events, in order. Each has its slot or, as a value, its own error."""
        return self._call(
            Call(
                "POST",
                "/api/v1/slots/batch",
                lambda answer: tuple(_result(row) for row in answer["results"]),
                body={"events": [event._document() for event in events]},
            )
        )

    @operation
    def get(self, event_id: str) -> Flow[AuditedSlot]:
        """The slot of an event, cancelled or not."""
        path = f"/api/v1/slots/{segment(event_id)}"
        return self._call(Call("GET", path, lambda answer: read(AuditedSlot, answer)))

    @operation
    def cancel(self, event_id: str) -> Flow[AuditedSlot]:
        """Frees the place of an event. Again changes nothing."""
        path = f"/api/v1/slots/{segment(event_id)}"
        return self._call(Call("DELETE", path, lambda answer: read(AuditedSlot, answer)))

    @listing
    def list(
        self,
        *,
        config_name: str | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        page_size: int | None = None,
    ) -> Flow[Page[AuditedSlot]]:
        """All slots scheduled from `start` up to `end`, in order of time, cancelled ones too."""
        params = {
            "configName": config_name,
            "from": instant(start),
            "to": instant(end),
            "limit": page_size,
        }
        return self._page(params, None)

    def _page(self, params: dict[str, Any], cursor: str | None) -> Flow[Page[AuditedSlot]]:
        def read_page(answer: Any) -> Page[AuditedSlot]:
            following = answer.get("nextCursor")
            return Page(
                read_list(AuditedSlot, answer, "slots"),
                (lambda: self._page(params, following)) if following else None,
            )

        return self._call(
            Call("GET", "/api/v1/slots", read_page, params={**params, "cursor": cursor})
        )

    @listing
    def windows(
        self,
        *,
        config_name: str | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
    ) -> Flow[Page[Window]]:
        """The windows in which something is given, in order, and how full they are."""
        params = {"configName": config_name, "to": instant(end)}
        return self._windows(params, instant(start))

    def _windows(self, params: dict[str, Any], start: str | None) -> Flow[Page[Window]]:
        def read_page(answer: Any) -> Page[Window]:
            following = answer.get("nextFrom")
            return Page(
                read_list(Window, answer, "windows"),
                (lambda: self._windows(params, following)) if following else None,
            )

        return self._call(
            Call("GET", "/api/v1/windows", read_page, params={**params, "from": start})
        )

    @operation
    def verify(self, config_name: str | None = None) -> Flow[Recount]:
        """Counts all slots again and compares them with what the windows say."""
        return self._call(
            Call(
                "GET",
                "/admin/slots/verify",
                lambda answer: read(Recount, answer),
                params={"configName": config_name},
            )
        )


def _result(row: dict[str, Any]) -> Slot | ApiError:
    if "scheduledTime" in row:
        return read(Slot, row)
    return error_of(int(row.get("status", 500)), row, None)
