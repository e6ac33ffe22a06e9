#!/usr/bin/env python3
"""A function in Python: counts frames by EtherType and passes them on.

    make wheel && pip install target/wheel/*.whl
    uvala port add vale0:count --service count
    python3 examples/nf/count.py vale0:count
"""
import collections
import itertools
import sys

import uvala


class Count(uvala.Function):
    seen = collections.Counter()

    def frame(self, frame):
        self.seen[frame.data[12] << 8 | frame.data[13]] += 1
        return uvala.NEXT


def main():
    count = Count(sys.argv[1])
    while True:
        slots = count.step(1.0)
        # A function has at most 256 counters, and a sender can use more types than that.
        for kind, frames in itertools.islice(count.seen.items(), 255):
            count.count(f"type_{kind:04x}", frames)
        count.gauge("types", len(count.seen))
        if slots == 0:
            print({f"0x{kind:04x}": frames for kind, frames in count.seen.items()}, flush=True)


if __name__ == "__main__":
    main()
