"""The server of an agent's model, where it is an endpoint: how long a person waits for it, and whether it is ready."""

from medagent.errors import EndpointError
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.policies.http_endpoint import USUAL_REST_S
from medagent.policy import Policy

PATIENCE_S = 5.0  # the longest wait at a limit while a person waits
PROBE = [{"role": "user", "content": "Reply with OK."}]


def hasten(policy: Policy) -> None:
    """Let an endpoint give up soon from now on, because somebody waits for the answer."""
    if isinstance(policy, RemotePolicy):
        policy.endpoint.retries, policy.endpoint.patience_s = min(1, policy.retries), PATIENCE_S


def raise_too_slow(policy: Policy, limit_s: float) -> None:
    """Raise `EndpointError` if it is an endpoint that did not write an answer within a limit."""
    if isinstance(policy, RemotePolicy):
        policy.endpoint.works = False
        told = f"endpoint {policy.url}: no answer within {limit_s:g} s."
        raise EndpointError(told, host=policy.endpoint.host, retry_after_s=round(USUAL_REST_S))


async def check(policy: Policy) -> None:
    """Raise `EndpointError` or `httpx.HTTPError` if it is an endpoint that would take no request now.

    One that answered the last is only asked for its models. Any other is asked for a few tokens.
    """
    if not isinstance(policy, RemotePolicy):
        return
    if policy.endpoint.works:
        answer = await policy.endpoint.get("models")
        if answer.status_code in (401, 403) or answer.status_code >= 500:
            raise policy.endpoint.refusal(answer, policy.model)
        return
    try:
        await policy.complete({"model": policy.model, "messages": PROBE, "max_tokens": 16})
    except EndpointError as refused:
        if refused.status not in (400, 422):  # it reads requests, and dislikes this one
            raise
