"""`@limited`: a function that runs only if a policy allows it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

from .client import AsyncTollgate, Tollgate
from .decisions import noting_a_failed_refund, require_wait

P = ParamSpec("P")
R = TypeVar("R")
Coro = Coroutine[Any, Any, R]


@overload
def limited(
    policy: str,
    *,
    client: Tollgate,
    subject: Mapping[str, str] | Callable[..., Mapping[str, str]] | None = None,
    cost: int | Callable[..., int] = 1,
    wait: float = 0.0,
    refund_on: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def limited(
    policy: str,
    *,
    client: AsyncTollgate,
    subject: Mapping[str, str] | Callable[..., Mapping[str, str]] | None = None,
    cost: int | Callable[..., int] = 1,
    wait: float = 0.0,
    refund_on: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Callable[[Callable[P, Coro[R]]], Callable[P, Coro[R]]]: ...
def limited(
    policy: str,
    *,
    client: Tollgate | AsyncTollgate,
    subject: Mapping[str, str] | Callable[..., Mapping[str, str]] | None = None,
    cost: int | Callable[..., int] = 1,
    wait: float = 0.0,
    refund_on: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Checks before each call; refused, it raises `Refused` and the function does not run.

    A plain function goes with a `Tollgate`, an async one with an `AsyncTollgate`. `subject` and
    `cost` are values, or functions of the call's own arguments. With `wait` a refused call waits
    for its turn, up to so many seconds. A function that raises one of `refund_on` has its units
    given back; `refund_on=()`: never.
    """
    require_wait(wait)

    def asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {
            "policy": policy,
            "subject": subject(*args, **kwargs) if callable(subject) else subject,
            "cost": cost(*args, **kwargs) if callable(cost) else cost,
            "wait": wait,
        }

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        is_async = inspect.iscoroutinefunction(function)
        if isinstance(client, AsyncTollgate):
            if not is_async:
                raise TypeError("AsyncTollgate limits async functions; use Tollgate for plain ones")
            return _awaiting(client, function, asked, refund_on)
        if is_async:
            raise TypeError("Tollgate limits plain functions; use AsyncTollgate for async ones")
        return _blocking(client, function, asked, refund_on)

    return decorate


_Asked = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]


def _blocking(
    client: Tollgate,
    function: Callable[..., Any],
    asked: _Asked,
    refund_on: type[Exception] | tuple[type[Exception], ...],
) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        decision = client.check(**asked(args, kwargs)).require()
        try:
            return function(*args, **kwargs)
        except refund_on:
            if decision.receipt is not None:
                with noting_a_failed_refund():
                    client.refund(decision.receipt)
            raise

    return run


def _awaiting(
    client: AsyncTollgate,
    function: Callable[..., Any],
    asked: _Asked,
    refund_on: type[Exception] | tuple[type[Exception], ...],
) -> Callable[..., Any]:
    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        decision = (await client.check(**asked(args, kwargs))).require()
        try:
            return await function(*args, **kwargs)
        except refund_on:
            if decision.receipt is not None:
                with noting_a_failed_refund():
                    await client.refund(decision.receipt)
            raise

    return run
