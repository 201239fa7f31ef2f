"""What can go wrong with a request, with the status that clients get."""

from __future__ import annotations

from cuvil_hw.errors import CuvilError


class RequestError(CuvilError):
    """`status`: of HTTP; gRPC's code is derived from it (grpc_front.py). `retry_after`: seconds; 0: don't."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        self.status, self.retry_after = status, retry_after
        super().__init__(message)

    @property
    def headers(self) -> dict[str, str]:
        """What goes beside the message, over both transports: whole seconds, rounded up."""
        return {"retry-after": str(max(1, round(self.retry_after + 0.5)))} if self.retry_after else {}


def wrong(message: str) -> RequestError:
    return RequestError(400, message)


def unknown(message: str) -> RequestError:
    return RequestError(404, message)


def busy(message: str, retry_after: float) -> RequestError:
    return RequestError(429, message, max(retry_after, 0.001))


class WorkerDied(Exception):
    """A worker's process ended, or was ended, in the middle of a call."""


class Retired(Exception):
    """A version takes no requests any more; there may be a newer one."""
