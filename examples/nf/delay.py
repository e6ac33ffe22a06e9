#!/usr/bin/env python3
"""A slow link in Python: holds every frame for 10 ms and sends it on.

    uvala port add vale0:delay --service delay
    LD_LIBRARY_PATH=target/release python3 examples/nf/delay.py vale0:delay
"""
import collections
import sys
import time

import functions

DELAY = 0.01


class Delay(functions.Function):
    waiting = collections.deque()

    def frame(self, frame):
        if frame.held:  # else it is dropped: a jumbo frame, or too many wait
            self.waiting.append((time.monotonic() + DELAY, frame.held))
        return functions.HOLD


def main():
    delay = Delay(sys.argv[1])
    while True:
        while delay.waiting and delay.waiting[0][0] <= time.monotonic():
            delay.send_on(delay.waiting.popleft()[1])
        delay.step(1_000 if delay.waiting else -1)


if __name__ == "__main__":
    main()
