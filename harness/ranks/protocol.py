"""Hold ``pytest_runtest_protocol`` open over several calls, one per phase.

Plugins wrap that hook to cover an item's whole life: pytest's own warning filters and assertion
representation do. A rank must stop between the phases, until its parent has heard every other rank, so the
wrappers are entered and left here by hand, in the order in which pluggy would call them. Implementations that
are not wrappers are the runner's business and are not called: the parent is the runner.
"""

from typing import TYPE_CHECKING, Any

import pluggy
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


class OpenProtocol:
    """The wrappers around one item: entered at construction, left by ``close``."""

    def __init__(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Enter every wrapper.

        Args:
            item: The item about to run.
            nextitem: What this rank is expected to run after it; wrappers may look at it.
        """
        arguments = {"item": item, "nextitem": nextitem}
        self._entered: list[tuple[Generator[Any, Any, Any], bool]] = []
        for implementation in reversed(item.ihook.pytest_runtest_protocol.get_hookimpls()):
            if not (implementation.hookwrapper or implementation.wrapper):
                continue
            wrapper: Any = implementation.function(*[arguments[name] for name in implementation.argnames])
            next(wrapper)
            self._entered.append((wrapper, bool(implementation.hookwrapper)))

    def close(self) -> None:
        """Leave every wrapper, innermost first.

        Raises:
            BaseException: whatever the wrappers raised first; the others are left all the same.
        """
        first: BaseException | None = None
        while self._entered:
            wrapper, old_style = self._entered.pop()
            try:
                wrapper.send(pluggy.Result.from_call(lambda: True) if old_style else True)
            except StopIteration:
                continue
            except BaseException as raised:  # noqa: BLE001 - kept, and raised once all the wrappers are left
                first = first or raised
            else:
                wrapper.close()
        if first is not None:
            raise first
