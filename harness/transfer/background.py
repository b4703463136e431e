"""One blocking call in a thread of its own, looked at now and then by whoever waits for something else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from harness.transfer.errors import TransferFailed

if TYPE_CHECKING:
    from collections.abc import Callable


class Background:
    """Starts ``call`` at once. The thread is a daemon's: a call that never ends does not keep the process.

    Args:
        call: raises ``TransferFailed`` when it fails.
        what: the call's name, for a sentence.
    """

    def __init__(self, call: Callable[[], None], what: str) -> None:
        self._call, self._what = call, what
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"transfer-{what}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised again by who looks
            self._error = error

    def check(self) -> None:
        """Raise ``TransferFailed`` if the call has failed."""
        error = self._error
        if isinstance(error, TransferFailed):
            raise error
        if error is not None:
            raise TransferFailed(f"{self._what}: {type(error).__name__}: {error}") from error

    def join(self, seconds: float) -> None:
        """Wait for the end of the call.

        Raises:
            TransferFailed: the call failed, or did not end in time.
        """
        self._thread.join(seconds)
        self.check()
        if self._thread.is_alive():
            raise TransferFailed(f"the engine's answer to {self._what} did not come within {seconds:g} s")
