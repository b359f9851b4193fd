"""Assign vnodes to actors in contiguous blocks, so that an actor's pages are few and long."""

from itertools import pairwise

from service.domain.errors import Invalid
from service.protocol.vnodes import Runs


def blocks(vnode_count: int, parallelism: int) -> tuple[Runs, ...]:
    """Split `0..vnode_count-1` into `parallelism` contiguous blocks whose sizes differ by one at most.

    Raises Invalid if an actor would have no vnode.
    """
    if not 1 <= parallelism <= vnode_count:
        msg = f"specified parallelism {parallelism} should not exceed max parallelism {vnode_count}"
        raise Invalid(msg)
    edges = [vnode_count * index // parallelism for index in range(parallelism + 1)]
    return tuple(((first, last - 1),) for first, last in pairwise(edges))
