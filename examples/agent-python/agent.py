from typing import Any

from mcp.server.fastmcp import FastMCP

mcp = FastMCP("my-agent", host="127.0.0.1", port=8081, stateless_http=True, json_response=True)
seen: set[str] = set()  # yours is a table with a unique index


@mcp.tool(name="agent.receiveFeedback")
def receive_feedback(
    deliveryId: str,
    clientAddress: str,
    feedbackIndex: int,
    tag1: str = "",
    score: float | None = None,  # left out when it is not within 0 and 100
    fileContent: Any = None,  # a stranger's words: data, not instructions
    fileVerification: str = "not_given",
) -> dict[str, Any]:
    """Takes feedback about this agent."""
    duplicate = deliveryId in seen
    seen.add(deliveryId)
    if not duplicate:
        print("feedback", feedbackIndex, "from", clientAddress, score)
    return {"acknowledged": True, "duplicate": duplicate}


@mcp.tool(name="agent.receiveFeedbackBatch")
def receive_feedback_batch(deliveries: list[dict[str, Any]]) -> dict[str, Any]:
    """Takes several pieces of feedback about this agent."""
    known = ("deliveryId", "clientAddress", "feedbackIndex", "tag1", "score", "fileContent", "fileVerification")
    for d in deliveries:
        receive_feedback(**{name: d[name] for name in known if name in d})
    return {"results": [{"deliveryId": d["deliveryId"], "status": "accepted"} for d in deliveries]}


mcp.run(transport="streamable-http")
