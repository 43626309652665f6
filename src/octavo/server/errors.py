"""Errors as OpenAI clients expect them: an HTTP status and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import msgspec


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class ApiError(Exception):
    """Ends a request with an HTTP status, or a stream that has begun with an error event.

    headers: extra response headers. close: end the connection too (what is left of the request is not worth reading).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(message, type, param, code)
        self.headers = headers
        self.close = close

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.detail))


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")


def overloaded(message: str, retry_after_s: int = 1) -> ApiError:
    return ApiError(
        429,
        message,
        type="rate_limit_error",
        code="queue_full",
        headers=((b"retry-after", b"%d" % retry_after_s),),
    )


def unavailable(message: str, code: str, retry_after_s: int = 1) -> ApiError:
    return ApiError(503, message, type="server_error", code=code, headers=((b"retry-after", b"%d" % retry_after_s),))


def engine_failed(message: str) -> ApiError:
    """The engine died, or failed on this request, while it was open."""
    return ApiError(500, message, type="server_error", code="engine_error")


def not_found(path: str, meant: str | None = None) -> ApiError:
    """meant: the path that there is, if the client only has another base in mind."""
    hint = f" The API is below /v1: ask for {meant} (a base URL ends in /v1)." if meant else ""
    return ApiError(404, f"There is no {path} here.{hint}", code="not_found")
