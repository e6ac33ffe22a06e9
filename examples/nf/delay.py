#!/usr/bin/env python3
"""A slow link in Python: holds every frame for 10 ms and sends it on.

    make wheel && pip install target/wheel/*.whl
    uvala port add vale0:delay --service delay
    python3 examples/nf/delay.py vale0:delay
"""
import collections
import sys
import time

import uvala

DELAY = 0.01


class Delay(uvala.Function):
    waiting = collections.deque()

    def frame(self, frame):
        if frame.held:  # else it is dropped: a jumbo frame, or too many wait
            self.waiting.append((time.monotonic() + DELAY, frame.held))
        return uvala.HOLD


def main():
    delay = Delay(sys.argv[1])
    while True:
        while delay.waiting and delay.waiting[0][0] <= time.monotonic():
            delay.send_on(delay.waiting.popleft()[1])
        delay.step(0.001 if delay.waiting else None)


if __name__ == "__main__":
    main()
