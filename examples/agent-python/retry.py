from contextlib import contextmanager
from contextvars import ContextVar

failures: ContextVar[list[Exception]] = ContextVar("failures")


@contextmanager
def retried():
    """In this block, an exception lets Herald call again, if the middleware below serves the request."""
    try:
        yield
    except Exception as failure:
        failures.get([]).append(failure)
        raise


class RetryFailures:
    """ASGI middleware that answers 503 after an exception in a block of retried().

    Without it, the SDK answers isError, and Herald never sends this feedback again. It needs stateless_http and
    json_response: then the SDK runs the tool in the request's context, and before it starts the response.
    """

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        failed: list[Exception] = []
        failures.set(failed)

        async def answer(message):
            if not failed:
                await send(message)
            elif message["type"] == "http.response.start":
                await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"10")]})
                await send({"type": "http.response.body", "body": b"try again: the tool failed"})

        await self.app(scope, receive, answer)
