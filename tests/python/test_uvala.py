"""The Python package against a daemon that runs: its directory is UVALA_DIR, its program UVALA.

Each test has a switch of its own, so that no frame strays.
"""
import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import uvala
from uvala import ErrorCode

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
HEAD = bytes.fromhex("ffffffffffff 020000000001 88b5")
SOON = 60
switches = itertools.count(1)


def numbered(number, size=60):
    return HEAD + number.to_bytes(4, "big") + bytes(size - 18)


def cli(*words):
    return subprocess.run([os.environ["UVALA"], *words], check=True, capture_output=True, text=True)


class Case(unittest.TestCase):
    def setUp(self):
        self.switch = f"vale{next(switches)}"
        self.ports = []

    def tearDown(self):
        for port in self.ports:
            port.close()

    def open(self, name, **options):
        port = uvala.Port(f"{self.switch}:{name}", **options)
        self.ports.append(port)
        return port

    def fails(self, code, call, *args, **options):
        with self.assertRaises(uvala.Error) as caught:
            call(*args, **options)
        self.assertEqual(caught.exception.code, code, caught.exception)
        self.assertNotEqual(str(caught.exception), "")


class Frames(Case):
    def test_frames_arrive_whole_and_in_order(self):
        a, b = self.open("a"), self.open("b")
        for number in range(2000):
            self.assertTrue(a.send(numbered(number)))
            if number % 100 == 99:
                for expected in range(number - 99, number + 1):
                    self.assertEqual(b.recv(SOON), numbered(expected))
        jumbo = numbered(7, 9000)
        a.send(bytearray(jumbo))
        self.assertEqual(b.recv(SOON), jumbo)

    def test_time_runs_out_without_a_frame_and_without_room(self):
        a = self.open("a")
        self.assertIsNone(a.recv(0))
        self.assertIsNone(a.recv(0.01))
        self.assertTrue(a.wait(uvala.TX, 1, 0))
        pipe = self.open("p{1", tx_slots=8)
        while pipe.send(numbered(0), 0.01):
            pass

    def test_leaving_a_port_waits_for_what_was_sent(self):
        b = self.open("b")
        with uvala.Port(f"{self.switch}:a") as a:
            for number in range(100):
                a.send(numbered(number))
        self.assertEqual([b.recv(SOON) for _ in range(100)], [numbered(n) for n in range(100)])

    def test_what_cannot_be_is_an_error_with_its_code(self):
        self.fails(ErrorCode.NAME, uvala.Port, "a")
        self.fails(ErrorCode.NOTFOUND, self.open, "a", existing=True)
        self.fails(ErrorCode.NODAEMON, self.open, "a", dir="/nowhere")
        for options in {"tx_rings": 1 << 16}, {"rx_slots": -1}, {"group_memory": 1 << 64}:
            with self.assertRaisesRegex(ValueError, "out of range"):
                self.open("a", **options)
        a = self.open("a")
        self.fails(ErrorCode.INUSE, self.open, "a")
        self.fails(ErrorCode.TOOSHORT, a.send, b"short")
        self.fails(ErrorCode.TOOLONG, a.send, bytes(70000))
        self.fails(ErrorCode.ARG, a.wait, uvala.TX, 1 << 20, 0)
        a.close()
        for call in a.recv, a.wait, a.drain, a.tx[0].look, a.rx[0].__len__:
            self.assertRaisesRegex(ValueError, "closed", call)

    def test_a_port_that_an_operator_deletes_says_so(self):
        a = self.open("a")
        operator = threading.Timer(0.05, cli, ["port", "del", a.name])
        operator.start()
        self.fails(ErrorCode.DELETED, a.recv)
        operator.join()
        self.fails(ErrorCode.DELETED, a.recv)

    def test_a_listing_names_the_program(self):
        self.open("a", client="probe")
        self.assertIn("probe", cli("port", "show", f"{self.switch}:a").stdout)


class Rings(Case):
    def test_frames_are_written_and_read_where_they_lie(self):
        a, b = self.open("a"), self.open("b")
        tx, rx = a.tx[0], b.rx[0]
        self.assertGreater(tx.look(), 2)
        for i in range(3):
            tx.frame(i, 60)[:] = numbered(i)
        tx.submit(3)
        while rx.look() < 3:
            self.assertTrue(b.wait(timeout=SOON))
        self.assertEqual([bytes(frame) for frame in rx], [numbered(i) for i in range(3)])
        rx.release(2)
        self.assertEqual(bytes(rx[0]), numbered(2))
        self.assertFalse(rx.more(0))

    def test_slots_and_bytes_that_are_not_the_programs_are_refused(self):
        a, b = self.open("a"), self.open("b")
        tx, rx = a.tx[0], b.rx[0]
        self.assertRaises(IndexError, lambda: rx[0])
        self.assertRaises(IndexError, tx.frame, tx.look(), 60)
        self.assertRaises(IndexError, tx.frame, -1, 60)
        self.assertRaises(ValueError, tx.frame, 0, tx.stride + 1)
        self.fails(ErrorCode.ARG, rx.release, 1)
        a.send(numbered(0))
        self.assertTrue(b.wait(timeout=SOON))
        rx.look()
        with self.assertRaises(TypeError):
            rx[0][0] = 1

    def test_memory_outlives_its_port(self):
        a, b = self.open("a"), self.open("b")
        a.send(numbered(5))
        self.assertTrue(b.wait(timeout=SOON))
        b.rx[0].look()
        frame = b.rx[0][0]
        b.close()
        self.assertEqual(bytes(frame), numbered(5))
        self.fails(ErrorCode.INUSE, self.open, "b")
        del frame
        self.open("b")

    def test_a_ring_is_forwarded_to_another(self):
        a, b = self.open("a"), self.open("b")
        c = uvala.Port(f"{self.switch}x:c")
        d = uvala.Port(f"{self.switch}x:d")
        self.ports += [c, d]
        a.send(numbered(9))
        self.assertTrue(b.wait(timeout=SOON))
        b.rx[0].look()
        self.assertEqual(b.rx[0].forward(c.tx[0], 10), 1)
        self.assertEqual(d.recv(SOON), numbered(9))


class Waiting(Case):
    def test_a_signal_handler_that_raises_ends_a_wait(self):
        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        a = self.open("a")
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            self.assertRaises(Alarm, a.recv)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_threads_wait_for_frames_and_room_at_one_port(self):
        a, b = self.open("a"), self.open("b")
        got = []
        receivers = [threading.Thread(target=lambda: got.append(b.wait(timeout=SOON)))
                     for _ in range(2)]
        for thread in receivers:
            thread.start()
        self.assertTrue(b.wait(uvala.TX, 1, SOON))
        a.send(numbered(0))
        for thread in receivers:
            thread.join()
        self.assertEqual(got, [True, True])


class Asyncio(Case, unittest.IsolatedAsyncioTestCase):
    async def test_tasks_exchange_frames(self):
        a, b = self.open("a"), self.open("b", rx_slots=64)

        async def answer():
            async for frame in b:
                await b.send_async(frame)

        async def ask():
            for number in range(500):
                await a.send_async(numbered(number))
                self.assertEqual(await a.recv_async(), numbered(number))

        answering = asyncio.create_task(answer())
        await asyncio.wait_for(ask(), SOON)
        answering.cancel()

    async def test_a_cancelled_wait_leaves_nothing_behind(self):
        a, b = self.open("a"), self.open("b")
        for _ in range(3):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(b.recv_async(), 0.01)
        waiting = asyncio.create_task(b.recv_async())
        await asyncio.sleep(0)
        await b.wait_async(uvala.TX)
        # A thread that waits beside the loop looks again from time to time.
        self.assertTrue(await asyncio.to_thread(b.wait, uvala.TX, 1, SOON))
        a.send(numbered(3))
        self.assertEqual(await asyncio.wait_for(waiting, SOON), numbered(3))

    async def test_all_tasks_hear_of_a_deletion(self):
        a = self.open("a")
        tasks = [asyncio.create_task(a.wait_async()) for _ in range(2)]
        await asyncio.sleep(0.01)
        cli("port", "del", a.name)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)
        self.assertEqual([error.code for error in results], [ErrorCode.DELETED] * 2)


class Examples(Case):
    def run_example(self, *words):
        command = [sys.executable, str(EXAMPLES / words[0]), *words[1:]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        return process

    def attached(self, *ports):
        end = time.monotonic() + SOON
        while True:
            listed = cli("port", "list").stdout
            if all(f"{port} " in listed for port in ports):
                return
            self.assertLess(time.monotonic(), end, listed)
            time.sleep(0.02)

    def test_the_first_lines_of_the_page_work_as_they_stand(self):
        page = (EXAMPLES.parents[1] / "docs" / "python.md").read_text()
        seen = {}
        exec(page.split("```python\n")[1].split("```")[0], seen)
        self.assertIsNone(seen["frame"], "there is no other port")

    def test_rings_send_to_rings(self):
        to, start = f"{self.switch}:to", f"{self.switch}:from"
        # Floods do not wait for a slow receiver; frames for a known address do.
        cli("port", "add", to, "--on-full", "wait")
        cli("fdb", "add", to, "02:00:00:00:00:02")
        receiver = self.run_example("rings.py", "receive", to, "5000")
        self.attached_client(to)
        sender = self.run_example("rings.py", "send", start, "5000")
        self.assertEqual(sender.communicate(timeout=SOON)[0], "sent 5000 frames\n")
        self.assertEqual(receiver.communicate(timeout=SOON)[0], "5000 frames, 300000 bytes\n")

    def attached_client(self, port):
        end = time.monotonic() + SOON
        while "rings receive" not in cli("port", "show", port).stdout:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_the_bridge_carries_both_ways(self):
        left, right = f"{self.switch}:left", f"{self.switch}x:right"
        self.run_example("bridge.py", left, right)
        self.attached(left, right)
        a, b = self.open("a"), uvala.Port(f"{self.switch}x:b")
        self.ports.append(b)
        for number in range(50):
            a.send(numbered(number))
            self.assertEqual(b.recv(SOON), numbered(number))
            b.send(numbered(number))
            self.assertEqual(a.recv(SOON), numbered(number))


if __name__ == "__main__":
    unittest.main()
