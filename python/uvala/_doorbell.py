"""How threads and tasks sleep until the switch rings a port's doorbell.

To arm is to ask for a kick, which makes the descriptor readable; to disarm takes back what all have
asked for. So there is one sleeper at a time, which holds a lock: a thread, or an event loop for all
of its tasks, which look again when it wakes them. Other threads look again every PAUSE; they wait
only where two threads find their rings empty, or full, at once.
"""
from __future__ import annotations

import asyncio
import math
import select
import threading
import time
from typing import Optional

from ._library import Handle, check, quick

PAUSE = 0.001
# The longest that poll(2) is asked for.
HOUR = 3600


class Doorbell:
    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._fd = check(quick.uvala_fd(handle))
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._sleeper = threading.Lock()
        # The tasks that sleep, while their loop is the sleeper.
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._tasks: set[asyncio.Future[None]] = set()

    def _is_ready(self, what: int, slots: int) -> bool:
        """Whether there is nothing to wait for; else a kick is asked for."""
        return check(quick.uvala_arm(self.handle, what, slots)) == 0

    def _disarm(self) -> None:
        lost = quick.uvala_disarm(self.handle)
        if lost < 0:
            # Only a check asks the daemon whether an operator has deleted the port.
            check(min(lost, quick.uvala_check(self.handle)))

    def wait(self, what: int, slots: int, timeout: Optional[float]) -> bool:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            is_sleeper = self._sleeper.acquire(blocking=False)
            try:
                if self._is_ready(what, slots):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if is_sleeper:
                    # A signal handler that raises ends it.
                    self._poll.poll(math.ceil(min(left, HOUR) * 1000))
                else:
                    time.sleep(min(PAUSE, left))
            finally:
                if is_sleeper:
                    try:
                        self._disarm()
                    finally:
                        self._sleeper.release()

    async def wait_async(self, what: int, slots: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._loop is not loop and not self._sleeper.acquire(blocking=False):
                if self._is_ready(what, slots):
                    return
                await asyncio.sleep(PAUSE)
                continue
            if self._loop is None:
                self._loop = loop
                loop.add_reader(self._fd, self._wake)
            task: asyncio.Future[None] = loop.create_future()
            self._tasks.add(task)
            try:
                if self._is_ready(what, slots):
                    return
                await task
            finally:
                self._tasks.discard(task)
                if not self._tasks and self._loop is loop:
                    self._leave(loop)

    def _wake(self) -> None:
        """Wakes all tasks: the kick may be for any of them."""
        tasks, self._tasks = self._tasks, set()
        sleeping = [task for task in tasks if not task.done()]
        assert self._loop is not None, "a reader has a loop"
        try:
            self._leave(self._loop)
        except Exception as error:
            for task in sleeping:
                task.set_exception(error)
        else:
            for task in sleeping:
                task.set_result(None)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._fd)
        self._loop = None
        try:
            self._disarm()
        finally:
            self._sleeper.release()
