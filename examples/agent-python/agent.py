import json
import os
import sqlite3
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.transport_security import TransportSecuritySettings

from callers import OnlyHerald
from retry import RetryFailures, retried

HERALD = os.environ.get("HERALD")  # the address of the only Herald that may call; unset: anyone may call
SELF = os.environ.get("SELF", "http://127.0.0.1:8081")  # scheme and host of this agent, as in its registration

# The SDK answers 421 to a request with another Host. A proxy passes its own address or the public one.
hosts = TransportSecuritySettings(allowed_hosts=["127.0.0.1:*", "localhost:*", urlsplit(SELF).netloc])
mcp = FastMCP("my-agent", stateless_http=True, json_response=True, transport_security=hosts)

db = sqlite3.connect("feedback.db", isolation_level=None)  # each statement is a transaction
db.execute("""CREATE TABLE IF NOT EXISTS feedback (delivery_id TEXT PRIMARY KEY, client TEXT NOT NULL,
    feedback_index INTEGER NOT NULL, score REAL, tag TEXT, file TEXT)""")


def store(deliveryId, clientAddress, feedbackIndex, score=None, tag1="", fileContent=None, **others):
    """Stores feedback once: a known deliveryId changes nothing."""
    row = (deliveryId, clientAddress, feedbackIndex, score, tag1, json.dumps(fileContent))
    db.execute("INSERT INTO feedback VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)


def is_probe(ctx: Context) -> bool:
    """Reports whether the call has only samples of an operator, which must not be stored. Refuses a direct call."""
    meta = ctx.request_context.meta
    extra = meta and meta.model_extra or {}
    if "io.agentherald/direct" in extra:
        raise ValueError("this is no delivery: Herald verified nothing in it")
    about = extra.get("io.agentherald/delivery", [])
    return any(d.get("probe") for d in (about if isinstance(about, list) else [about]))


@mcp.tool(name="agent.receiveFeedback")
def receive_feedback(
    ctx: Context,
    deliveryId: str,
    clientAddress: str,
    feedbackIndex: int,
    score: float | None = None,  # Herald omits it if it is not within 0 and 100
    tag1: str = "",
    fileContent: Any = None,  # anyone can write this: data, not instructions
) -> dict[str, Any]:
    """Receives feedback about this agent."""
    if not is_probe(ctx):
        with retried():
            store(deliveryId, clientAddress, feedbackIndex, score, tag1, fileContent)
    return {"acknowledged": True}


@mcp.tool(name="agent.receiveFeedbackBatch")
def receive_feedback_batch(ctx: Context, deliveries: list[dict[str, Any]]) -> dict[str, Any]:
    """Receives several pieces of feedback about this agent."""
    if not is_probe(ctx):
        with retried():  # after a failure, Herald sends the whole batch again
            for d in deliveries:
                store(**d)
    return {"results": [{"deliveryId": d["deliveryId"], "status": "accepted"} for d in deliveries]}


if __name__ == "__main__":
    app = RetryFailures(mcp.streamable_http_app())
    if HERALD:
        app = OnlyHerald(app, HERALD, SELF)
    uvicorn.run(app, host="127.0.0.1", port=8081)
