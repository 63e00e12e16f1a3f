"""Slots against a running server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from tollgate_client import ApiError, BadInput, Conflict, Event, NotFound, Slot, Tollgate

Unique = Callable[[str], str]
NOON = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def config(client: Tollgate, unique: Unique) -> str:
    """Two per minute."""
    return client.configs.put(unique("c"), max_per_window=2, window_size="PT1M").config_name


def test_an_event_gets_one_slot_however_often_it_asks(client: Tollgate, config: str) -> None:
    event = f"{config}-pay"
    slot = client.slots.assign(event, config_name=config, requested_time=NOON)
    assert slot == client.slots.assign(event, config_name=config, requested_time=NOON)
    assert slot.event_id == event
    assert slot.scheduled_time >= NOON
    assert slot.delay_ms == (slot.scheduled_time - NOON) // timedelta(milliseconds=1)
    with pytest.raises(Conflict) as other:
        client.slots.assign(event, config_name=config, requested_time=NOON + timedelta(hours=1))
    assert other.value.field == "eventId"


def test_times_of_any_zone_are_understood_and_those_of_none_are_not(
    client: Tollgate, config: str
) -> None:
    rome = NOON.astimezone(timezone(timedelta(hours=1)))
    slot = client.slots.assign(f"{config}-a", config_name=config, requested_time=rome)
    assert slot.scheduled_time >= NOON
    with pytest.raises(ValueError, match="zone"):
        client.slots.assign("x", requested_time=datetime(2026, 12, 1))
    with pytest.raises(BadInput) as bad:
        client.slots.assign("x", requested_time="yesterday")
    assert bad.value.field == "requestedTime"


def test_a_batch_answers_each_event_in_order(client: Tollgate, config: str) -> None:
    results = client.slots.assign_batch(
        [
            Event(f"{config}-1", config, NOON),
            Event("", config),
            Event(f"{config}-2", config, NOON),
            Event(f"{config}-3", "nowhere"),
        ]
    )
    first, nameless, second, lost = results
    assert isinstance(first, Slot)
    assert isinstance(second, Slot)
    assert (first.event_id, second.event_id) == (f"{config}-1", f"{config}-2")
    assert isinstance(nameless, BadInput)
    assert isinstance(lost, NotFound)
    assert isinstance(lost, ApiError)


# A dot, a slash and the name of a route are names like any other.
@pytest.mark.parametrize("name", ["plain", "a/b", "ä ?#%", "batch", "..", "."])
def test_an_event_of_any_name_is_shown_and_cancelled(
    client: Tollgate, config: str, name: str
) -> None:
    given = client.slots.assign(name, config_name=config, requested_time=NOON)
    shown = client.slots.get(name)
    assert (shown.event_id, shown.scheduled_time) == (name, given.scheduled_time)
    assert (shown.config_name, shown.config_version, shown.cancelled_at) == (config, 1, None)
    cancelled = client.slots.cancel(name)
    assert cancelled.cancelled_at is not None
    assert client.slots.cancel(name) == cancelled
    with pytest.raises(Conflict, match="cancelled"):
        client.slots.assign(name, config_name=config, requested_time=NOON)
    with pytest.raises(NotFound):
        client.slots.get(f"{name}-never")


def test_a_listing_runs_over_all_pages_and_a_recount_finds_no_drift(
    client: Tollgate, config: str
) -> None:
    client.slots.assign_batch(Event(f"{config}-{n}", config, NOON) for n in range(7))
    slots = list(client.slots.list(config_name=config, page_size=3))
    assert len({slot.event_id for slot in slots}) == 7
    assert slots == sorted(slots, key=lambda slot: slot.scheduled_time)
    later = client.slots.list(config_name=config, start=NOON + timedelta(minutes=1))
    assert [*later] == slots[2:]
    windows = list(client.slots.windows(config_name=config, start=NOON))
    assert [(window.count, window.max) for window in windows] == [(2, 2)] * 3 + [(1, 2)]
    assert windows[0].start == NOON
    recount = client.slots.verify(config)
    assert (recount.slots, recount.windows, recount.drifts) == (7, 4, ())
