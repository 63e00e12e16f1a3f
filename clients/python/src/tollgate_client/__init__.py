"""Client of Tollgate, the rate limiter that answers: when may this happen?

`Tollgate` blocks, `AsyncTollgate` awaits; they have the same calls. `asgi.TollgateMiddleware`
protects an ASGI application, `limited` a function.
"""

from .asgi import Answer, HttpRequest, TollgateMiddleware, refusal
from .client import AsyncTollgate, Tollgate
from .decisions import Decision, LimitReport, Refund
from .decorator import limited
from .errors import (
    ApiError,
    BadAnswer,
    BadInput,
    Conflict,
    NotAuthorised,
    NotFound,
    NotIdentified,
    QuotaExceeded,
    Refused,
    TollgateError,
    Unavailable,
    Unreachable,
)
from .mail import (
    Account,
    Added,
    Attachment,
    Message,
    NewMessage,
    Queued,
    Rejected,
    SavedTenant,
    Tenant,
    Usage,
    attachment,
)
from .policies import (
    Config,
    Limit,
    Override,
    Policy,
    PolicyChange,
    PolicyDocument,
    PolicyVersion,
    Token,
)
from .retry import Retry
from .slots import AuditedSlot, Drift, Event, Recount, Slot, Window

__all__ = [
    "Account",
    "Added",
    "Answer",
    "ApiError",
    "AsyncTollgate",
    "Attachment",
    "AuditedSlot",
    "BadAnswer",
    "BadInput",
    "Config",
    "Conflict",
    "Decision",
    "Drift",
    "Event",
    "HttpRequest",
    "Limit",
    "LimitReport",
    "Message",
    "NewMessage",
    "NotAuthorised",
    "NotFound",
    "NotIdentified",
    "Override",
    "Policy",
    "PolicyChange",
    "PolicyDocument",
    "PolicyVersion",
    "Queued",
    "QuotaExceeded",
    "Recount",
    "Refund",
    "Refused",
    "Rejected",
    "Retry",
    "SavedTenant",
    "Slot",
    "Tenant",
    "Token",
    "Tollgate",
    "TollgateError",
    "TollgateMiddleware",
    "Unavailable",
    "Unreachable",
    "Usage",
    "Window",
    "attachment",
    "limited",
    "refusal",
]
