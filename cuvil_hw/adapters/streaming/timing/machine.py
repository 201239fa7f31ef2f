"""Runs control programs, and networks of processes in simulated time, at machine speed (numba).

Numba compiles these functions once for an installed version and keeps them on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from cuvil_hw.adapters.streaming.timing import code as c
from cuvil_hw.errors import ToolNotFound, pip_install

(READ, WRITE, TICK, TICKS, END, JUMP, IF_ZERO, IF_GE, NEXT, MOVE, LOAD, STORE, SELECT, COMPARE, SIGNED, UNSIGNED, ADD,
 SUB, MUL, AND, OR, XOR, SHL, SHRS, SHRU, MIN, MAX, DIVS, REMS, FLOORDIV) = (
    c.READ, c.WRITE, c.TICK, c.TICKS, c.END, c.JUMP, c.IF_ZERO, c.IF_GE, c.NEXT, c.MOVE, c.LOAD, c.STORE, c.SELECT,
    c.COMPARE, c.SIGNED, c.UNSIGNED, c.ADD, c.SUB, c.MUL, c.AND, c.OR, c.XOR, c.SHL, c.SHRS, c.SHRU, c.MIN, c.MAX,
    c.DIVS, c.REMS, c.FLOORDIV,
)  # fmt: skip
OUTSIDE = -1
ZERO = -2


@cache
def machine() -> tuple[Callable[..., tuple[int, int, int]], Callable[..., Any]]:
    """`traced` and `timed` as machine code, kept on disk where there is a place for it. Raises ToolNotFound."""
    try:
        import numba
    except ImportError:
        remedy = f"install it with: {pip_install('compiler')}"
        raise ToolNotFound("numba", "time streaming designs", remedy) from None
    try:
        return numba.njit(cache=True)(traced), numba.njit(cache=True)(timed)
    except RuntimeError:  # neither its own folder nor the user's cache can be written
        return numba.njit(traced), numba.njit(timed)


def traced(rows: Any, registers: Any, memory: Any, first: Any, size: Any, shift: int, out: Any) -> tuple[int, int, int]:
    """Run a program once. (events, cycles in all, cycles behind the last event); each event goes to `out` as
    cycles since the one before · 2^shift + 2 · stream + (1 for a write), while there is room.

    `first`, `size`: of each memory in `memory`. OUTSIDE or ZERO instead of a number of events: an index outside its
    memory, a division by zero."""
    pc, count, since, total = 0, 0, 0, 0
    begin, last = np.full(1 << shift, -1, np.int64), np.full(1 << shift, -1, np.int64)  # of each end of a stream
    while True:
        op, a, b, at = rows[pc, 0], rows[pc, 1], rows[pc, 2], rows[pc, 3]
        pc += 1
        if op <= WRITE:
            what = 2 * a + op
            if last[what] == total:  # an end moves one word a cycle
                since += 1
                total += 1
            last[what] = total
            if begin[what] < 0:
                begin[what] = total
            if count < len(out):
                out[count] = (since << shift) + what
            count += 1
            since = 0
        elif op == TICK:
            since += a
            total += a
        elif op == NEXT:
            registers[a] += registers[b]
            if registers[a] < registers[at]:
                pc = rows[pc - 1, 4]
        elif op == IF_ZERO:
            if registers[a] == 0:
                pc = b
        elif op == COMPARE:
            x, y, kind = registers[b], registers[at], rows[pc - 1, 4]
            if kind > 5:
                bits = rows[pc - 1, 5]
                if bits < 64:
                    x &= (np.int64(1) << bits) - 1
                    y &= (np.int64(1) << bits) - 1
                kind -= 4
            if kind == 0:
                r = x == y
            elif kind == 1:
                r = x != y
            elif kind == 2:
                r = x < y
            elif kind == 3:
                r = x <= y
            elif kind == 4:
                r = x > y
            else:
                r = x >= y
            registers[a] = 1 if r else 0
        elif op == MOVE:
            registers[a] = registers[b]
        elif op in (LOAD, STORE):
            block, index = (b, registers[at]) if op == LOAD else (a, registers[b])
            if index < 0 or index >= size[block]:
                return OUTSIDE, total, since
            if op == LOAD:
                registers[a] = memory[first[block] + index]
            else:
                memory[first[block] + index] = registers[at]
        elif op == IF_GE:
            if registers[a] >= registers[b]:
                pc = at
        elif op == JUMP:
            pc = a
        elif op == TICKS:
            more = max(registers[a], 0) * b
            since += more
            total += more
        elif op == END:
            cycles = total
            for what in range(1 << shift):
                if begin[what] >= 0:
                    cycles = max(cycles, last[what] - begin[what] + 1)
            return count, cycles, since
        elif op == SELECT:
            registers[a] = registers[at] if registers[b] != 0 else registers[rows[pc - 1, 4]]
        elif op == SIGNED:
            x = registers[b]
            if at == 1:
                x = -(x & 1) if rows[pc - 1, 4] else x & 1
            elif at < 64:
                x = (x << (64 - at)) >> (64 - at)
            registers[a] = x
        elif op == UNSIGNED:
            registers[a] = registers[b] & ((np.int64(1) << at) - 1) if at < 64 else registers[b]
        else:
            x, y, bits = registers[b], registers[at], rows[pc - 1, 4]
            if op == ADD:
                x += y
            elif op == SUB:
                x -= y
            elif op == MUL:
                x *= y
            elif op == AND:
                x &= y
            elif op == OR:
                x |= y
            elif op == XOR:
                x ^= y
            elif op == SHL:
                x <<= y
            elif op == SHRS:
                x >>= y
            elif op == SHRU:
                x = (x & ((np.int64(1) << bits) - 1)) >> y if bits < 64 else x >> y
            elif op == MIN:
                x = min(x, y)
            elif op == MAX:
                x = max(x, y)
            elif y == 0:
                return ZERO, total, since
            else:
                floor = x // y
                ragged = floor * y != x
                if op in (DIVS, REMS):
                    whole = floor + 1 if ragged and (x < 0) != (y < 0) else floor
                    x = whole if op == DIVS else x - whole * y
                else:
                    x = floor if op == FLOORDIV else floor + (1 if ragged else 0)
            if bits == 1:
                x &= 1
            elif bits < 64:
                x = (x << (64 - bits)) >> (64 - bits)
            registers[a] = x


def timed(
    events: Any, begin: Any, tail: Any, shift: Any, base: Any, ends: Any, depth: Any, room: Any, place: Any,
    work: Any, pace: int, samples: int, begun: Any, through: Any, waited: Any, most: Any, blame: Any,
) -> Any:  # fmt: skip
    """Run a network for `samples` samples, as far as it goes.

    Args:
        events: traces of all processes; process p has those from begin[p] to begin[p + 1], then tail[p] cycles.
        shift: of each process, as in `traced`; base[p] + n: the stream that it calls n.
        ends: of each stream, the process that writes it and the one that reads it; -1: the world outside.
        depth: of each stream, in words. room: power of two of at least as many words, from place[s] on, where the
            times of its words are kept.
        work: of each process, cycles for a sample when it never waits.
        pace: above 0: every process is slowed down evenly, to `pace` cycles for a sample.
        begun: gets the cycle in which process p moves its first word of sample n, (process, sample).
        through: gets the cycle in which process p is through with sample n, (process, sample).
        waited: gets the cycles for which a stream's reader [0] and writer [1] waited for it, (side, stream, sample).
        most: gets the words that were in a stream at a time, at most.
        blame: gets, for the end of each sample of each process, on the chain of events that decided when that was the
            last one that waited for room: its cycle · 2^16 + stream + 1, or 0 if none did. (process, sample)

    Returns:
        Of each process, the stream that it waits for: 2 · stream + (1 for room); -1: it is through.
    """
    processes, streams = len(tail), len(depth)
    written, read = np.zeros(streams, np.int64), np.zeros(streams, np.int64)
    total = place[streams]
    sent, taken = np.zeros(total, np.int64), np.zeros(total, np.int64)  # when a word was written, and read
    why_sent, why_taken = np.zeros(total, np.int64), np.zeros(total, np.int64)  # `blame` of these
    last_sent, last_taken = np.full(streams, -1, np.int64), np.full(streams, -1, np.int64)
    seen_sent, seen_taken = np.zeros(streams, np.int64), np.zeros(streams, np.int64)
    clock, done, why = np.zeros(processes, np.int64), np.zeros(processes, np.int64), np.zeros(processes, np.int64)
    at, own, slow = begin[:processes].copy(), np.zeros(processes, np.int64), np.zeros(processes, np.int64)
    waits = np.full(processes, -2, np.int64)  # -2: runs
    moved = True
    while moved:
        moved = False
        for p in range(processes):
            if waits[p] != -2:
                continue
            moved = True
            now, e, reason, n, last = clock[p], at[p], why[p], done[p], begin[p + 1]
            bits = shift[p]
            low = (1 << bits) - 1
            while True:
                if e == last:
                    now += tail[p] if pace == 0 else pace - slow[p]
                    own[p], slow[p] = 0, 0
                    through[p, n] = now
                    blame[p, n] = reason
                    n += 1
                    if n == samples:
                        waits[p] = -1
                        break
                    e = begin[p]
                    if e == last:  # no events at all
                        continue
                word = events[e]
                start = now + (word >> bits)
                if pace > 0:
                    slowed = (own[p] + (word >> bits)) * pace // work[p]
                    start = now + slowed - slow[p]
                s = base[p, (word & low) >> 1]
                mask = room[s] - 1
                if word & 1 == 0:
                    k = read[s]
                    start = max(start, last_taken[s] + 1)
                    if ends[s, 0] < 0:
                        ready = k + 1
                        if ready > start:
                            reason = 0
                    else:
                        if k == written[s]:
                            waits[p] = 2 * s
                            break
                        i, j = seen_sent[s], seen_taken[s]
                        while i < written[s] and j < k:  # merge both in order of time
                            if sent[place[s] + (i & mask)] <= taken[place[s] + (j & mask)]:
                                i += 1
                                if i - j > most[s]:
                                    most[s] = i - j
                            else:
                                j += 1
                        seen_sent[s], seen_taken[s] = i, j
                        ready = sent[place[s] + (k & mask)] + 1
                        if ready > start:
                            reason = why_sent[place[s] + (k & mask)]
                        taken[place[s] + (k & mask)] = max(start, ready)
                        why_taken[place[s] + (k & mask)] = reason
                    now = max(start, ready)
                    last_taken[s] = now
                    waited[0, s, n] += now - start
                    read[s] = k + 1
                    other = ends[s, 0]
                    if other >= 0 and waits[other] == 2 * s + 1:
                        waits[other] = -2
                else:
                    k = written[s]
                    start = max(start, last_sent[s] + 1)
                    if ends[s, 1] >= 0:
                        free = k - depth[s]
                        if free >= 0:
                            if free >= read[s]:
                                waits[p] = 2 * s + 1
                                break
                            ready = taken[place[s] + (free & mask)] + 1
                            if ready > start:
                                waited[1, s, n] += ready - start
                                start = ready
                                reason = (start << 16) + s + 1
                        sent[place[s] + (k & mask)] = start
                        why_sent[place[s] + (k & mask)] = reason
                    now = start
                    last_sent[s] = now
                    written[s] = k + 1
                    other = ends[s, 1]
                    if other >= 0 and waits[other] == 2 * s:
                        waits[other] = -2
                if e == begin[p]:
                    begun[p, n] = now
                if pace > 0:
                    own[p], slow[p] = own[p] + (word >> bits), slowed
                e += 1
            clock[p], at[p], why[p], done[p] = now, e, reason, n
    return waits
