"""Policies, overrides, configs and the state of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_type_hints

import httpx
import pytest
from conftest import MakePolicy
from server import Server, eventually

from tollgate_client import BadInput, Conflict, Limit, NotFound, PolicyDocument, Tollgate

Unique = Callable[[str], str]
MINUTE: Limit = {"name": "minute", "max": 2, "per": "60s", "by": ["user"]}


def test_a_policy_is_put_shown_changed_and_deleted(client: Tollgate, unique: Unique) -> None:
    name = unique("p")
    document: PolicyDocument = {"limits": [MINUTE], "on_store_error": "allow"}
    made = client.policies.put(name, document)
    assert (made.version, made.changed, made.restarted) == (1, True, ())
    assert not client.policies.put(name, document).changed
    longer: Limit = {**MINUTE, "per": "120s"}
    assert client.policies.put(name, {"limits": [longer]}).restarted == ("minute",)
    policy = client.policies.get(name)
    assert (policy.name, policy.version) == (name, 2)
    assert policy.document["limits"][0]["per"] == "120s"
    assert policy in client.policies.list()
    client.policies.delete(name)
    with pytest.raises(NotFound):
        client.policies.get(name)
    gone, second, first = client.policies.versions(name)
    assert (gone.deleted, gone.policy, second.version) == (True, None, 2)
    assert first.policy is not None
    assert first.policy["on_store_error"] == "allow"


def test_a_bad_policy_is_refused_with_every_fault(client: Tollgate) -> None:
    bad: Limit = {"name": "x", "max": 1, "per": "soon"}
    with pytest.raises(BadInput) as refused:
        client.policies.put("bad", {"limits": [bad]})
    assert refused.value.field == "limits[0].per"
    assert refused.value.document["errors"]


def test_the_types_name_what_the_server_takes(server: Server) -> None:
    schemas = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    for kind, schema in ((Limit, "PolicyLimit"), (PolicyDocument, "PolicyDocument")):
        # `put` has its name and version beside the document.
        beside = {"name", "version", "effective_from"} if kind is PolicyDocument else set()
        assert set(get_type_hints(kind)) == set(schemas[schema]["properties"]) - beside


def test_a_change_on_top_of_another_version_is_a_conflict(client: Tollgate, unique: Unique) -> None:
    name = unique("p")
    first: PolicyDocument = {"limits": [{"name": "all", "max": 1, "per": "60s"}]}
    mine: PolicyDocument = {"limits": [{"name": "all", "max": 2, "per": "60s"}]}
    late: PolicyDocument = {"limits": [{"name": "all", "max": 3, "per": "60s"}]}
    read = client.policies.put(name, first).version
    assert client.policies.put(name, mine, version=read).changed
    with pytest.raises(Conflict):
        client.policies.put(name, late, version=read)
    assert client.policies.get(name).document == mine
    # What is in force already is no change, as when an answer was lost and the call is tried again.
    assert not client.policies.put(name, mine, version=read).changed


def test_every_setting_of_a_policy_is_taken(client: Tollgate, unique: Unique) -> None:
    wide: Limit = {
        "name": "ip",
        "max": 5,
        "per": "60s",
        "algorithm": "sliding",
        "resolution": "1s",
        "by": ["ip"],
        "private": True,
        "ipv6_prefix": 48,
        "max_by": {"role": {"pro": 50}},
        "shadow": False,
    }
    daily: Limit = {"name": "day", "max": 9, "per": "day", "timezone": "Europe/Rome"}
    bucket: Limit = {"name": "rate", "max": 9, "per": "1s", "algorithm": "bucket", "burst": 20}
    name = unique("p")
    document: PolicyDocument = {
        "limits": [wide, daily, bucket],
        "routes": [f"POST /{name}/*"],
        "on_store_error": "local",
        "durability": "sync",
    }
    client.policies.put(name, document)
    assert client.policies.get(name).document == document
    client.check(name, {"ip": "2001:db8:1:2::1"})
    # Of one /48.
    assert client.peek(name, {"ip": "2001:db8:1:ffff::1"}).limits[0].used == 1
    client.policies.delete(name)


def test_what_the_types_refuse_the_server_refuses(client: Tollgate) -> None:
    # mypy fails on an ignore that is not needed.
    private: Limit = {**MINUTE, "private": ["user"]}  # type: ignore[typeddict-item]
    with pytest.raises(BadInput) as refused:
        client.policies.put("bad", {"limits": [private]})
    assert refused.value.field == "limits[0].private"
    route = {"path": "/x", "method": "GET"}
    with pytest.raises(BadInput) as refused:
        client.policies.put("bad", {"limits": [MINUTE], "routes": [route]})  # type: ignore[list-item]
    assert str(refused.value.field).startswith("routes")


def test_alerts_are_read_page_by_page(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1)
    # Five refusals raise one.
    for user in ("ada", "bob"):
        for _ in range(6):
            client.check(name, {"user": user})
    for _ in eventually("both are raised"):
        alerts = client.alerts()["alerts"]
        if sum(alert["policy"] == name for alert in alerts) == 2:
            break
    newest = client.alerts(limit=1)
    assert newest["alerts"] == alerts[:1]
    following = client.alerts(cursor=newest["next_cursor"], limit=1)
    assert following["alerts"] == alerts[1:2]


def test_one_subject_has_its_own_max(client: Tollgate, unique: Unique) -> None:
    name = unique("p")
    client.policies.put(name, {"limits": [MINUTE]})
    made = client.overrides.put(name, "minute", {"user": "vip"}, 100)
    assert (made.policy, made.limit, made.subject, made.max) == (
        name,
        "minute",
        {"user": "vip"},
        100,
    )
    assert (name, 100) in {(it.policy, it.max) for it in client.overrides.list()}
    assert client.peek(name, {"user": "vip"}).remaining == 100
    assert client.peek(name, {"user": "ada"}).remaining == 2
    client.overrides.delete(name, "minute", {"user": "vip"})
    with pytest.raises(NotFound):
        client.overrides.delete(name, "minute", {"user": "vip"})


def test_a_config_is_a_policy_of_one_limit(client: Tollgate, unique: Unique) -> None:
    name = unique("c")
    made = client.configs.put(name, max_per_window=7, window_size="PT4S")
    assert made == client.configs.get(name)
    assert (made.max_per_window, made.window_size, made.version) == (7, "PT4S", 1)
    with pytest.raises(BadInput) as bad:
        client.configs.put(name, max_per_window=7, window_size="4 moons")
    assert bad.value.field == "windowSize"
    assert client.configs.get().config_name == "default"
    client.configs.flush_cache()


def test_the_server_is_ready_and_has_metrics(client: Tollgate) -> None:
    assert client.ready()
    client.check("default")
    assert "tollgate_decisions_total" in client.metrics()
