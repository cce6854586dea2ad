"""How long to wait before the next attempt."""


def delay(attempt: int) -> int:
    """Seconds to wait after `attempt` failures: doubling, at most a minute."""
    return min(60, 2**attempt)
