"""The x of boxes in rows, when the order in each row is settled: near to what they are linked with, backbones upright.

State of an `Alignment`: `x`, the middles, in order and without overlap at the end of each sweep; the rest is fixed.
First the rows are swept down and up, each placed under or over its neighbours. Then each run of a backbone is made
upright as far as there is room for it, and what is in no run gives way and moves close again; a few rounds settle that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import chain, pairwise

GAP = 18.0
"""Least space between neighbours in a row."""

_SWEEPS, _ROUNDS = 16, 8
"""More change nothing that one could see in the drawings of the package's models; each is linear."""

_BACKBONE, _SIDE, _ACROSS = 8.0, 1.0, 0.05
"""How strongly two linked boxes pull each other: along a backbone, in one column, between columns."""

_ANCHORED = 1e3
"""How strongly an upright box keeps its place."""

Link = tuple[int, int]
"""Two boxes of adjacent rows, the upper one first."""

Pull = tuple[int, float]
"""A box that pulls, and how strongly."""


class Alignment:
    """Aligns boxes with `widths` and `columns`.

    `order` lists each row from left to right; `links` are in the order of rows.
    """

    def __init__(
        self, widths: Sequence[float], columns: Sequence[int], order: Sequence[Sequence[int]], links: Sequence[Link]
    ) -> None:
        self.x = [0.0] * len(widths)
        self._order = order
        self._packed = [0.0] * len(widths)  # each middle's distance from its row's first, in a row without free space
        for row in order:
            for left, right in pairwise(row):
                self._packed[right] = self._packed[left] + (widths[left] + widths[right]) / 2 + GAP
        self._above: list[list[Pull]] = [[] for _ in widths]
        self._below: list[list[Pull]] = [[] for _ in widths]
        bones = backbones([(a, b) for a, b in links if columns[a] == columns[b]])
        for a, b in links:
            pull = _BACKBONE if (a, b) in bones else _SIDE if columns[a] == columns[b] else _ACROSS
            self._below[a].append((b, pull))
            self._above[b].append((a, pull))
        self._sweep()
        self._straighten(_runs(bones))

    def _sweep(self) -> None:
        """Rows follow the row before, down and up; in the second half, both their neighbours."""
        both = [[*up, *down] for up, down in zip(self._above, self._below, strict=True)]
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = both if sweep >= _SWEEPS // 2 else self._above if down else self._below
            for row in self._order if down else reversed(self._order):
                self._place(row, [near[index] for index in row])

    def _straighten(self, runs: Sequence[Sequence[int]]) -> None:
        """Make runs upright, and move what is in none close to them."""
        near = [[*up, *down] for up, down in zip(self._above, self._below, strict=True)]
        for index in chain.from_iterable(runs):
            near[index] = [(index, _ANCHORED)]
        neighbours = self._neighbours(set(chain.from_iterable(runs)))
        for _ in range(_ROUNDS):
            for run in runs:
                self._make_upright(run, neighbours)
            for row in self._order:
                self._place(row, [near[index] for index in row])

    def _neighbours(self, firm: Set[int]) -> dict[int, tuple[int | None, int | None]]:
        """The nearest to the left and to the right of each `firm` box that are firm as well; the others give way."""
        rows = [[index for index in row if index in firm] for row in self._order]
        return {
            index: (left, right)
            for row in rows
            for left, index, right in zip([None, *row], row, [*row[1:], None], strict=False)
        }

    def _make_upright(self, run: Sequence[int], neighbours: Mapping[int, tuple[int | None, int | None]]) -> None:
        """Give as many boxes of a run as there is room for one x, then the next of them, and so on."""
        part: list[int] = []
        low, high = -math.inf, math.inf
        for index in run:
            left, right = neighbours[index]
            own_low = -math.inf if left is None else self.x[left] + self._packed[index] - self._packed[left]
            own_high = math.inf if right is None else self.x[right] - self._packed[right] + self._packed[index]
            if part and max(low, own_low) > min(high, own_high):
                self._move(part, low, high)
                part, low, high = [], -math.inf, math.inf
            part.append(index)
            low, high = max(low, own_low), min(high, own_high)
        self._move(part, low, high)

    def _move(self, part: Sequence[int], low: float, high: float) -> None:
        """Move boxes to one x between `low` and `high`, towards what pulls at the ends."""
        target = self._target([*self._above[part[0]], *self._below[part[-1]]], self.x[part[0]])[0]
        for index in part:
            self.x[index] = min(max(target, low), high)

    def _target(self, pulls: Sequence[Pull], otherwise: float) -> tuple[float, float]:
        """The weighted mean of the boxes that pull, and the sum of weights; without any, `otherwise` and little."""
        weight = sum(pull for _, pull in pulls)
        return (sum(self.x[index] * pull for index, pull in pulls) / weight, weight) if pulls else (otherwise, 1e-3)

    def _place(self, row: Sequence[int], pulls: Sequence[Sequence[Pull]]) -> None:
        """Place a row in its order, without overlap, with the least weighted squares of distances to what pulls it.

        Measured from where a packed row would have each box, that is isotonic regression: boxes that would overlap
        join into blocks, each at the mean of its members (pool adjacent violators).
        """
        blocks: list[tuple[float, float, int]] = []  # mean, weight, members
        for index, near in zip(row, pulls, strict=True):
            target, weight = self._target(near, self.x[index])
            mean, members = target - self._packed[index], 1
            while blocks and blocks[-1][0] > mean:
                other_mean, other_weight, others = blocks.pop()
                mean = (mean * weight + other_mean * other_weight) / (weight + other_weight)
                weight, members = weight + other_weight, members + others
            blocks.append((mean, weight, members))
        means = chain.from_iterable([mean] * members for mean, _, members in blocks)
        for index, mean in zip(row, means, strict=True):
            self.x[index] = mean + self._packed[index]


def backbones(links: Sequence[Link]) -> set[Link]:
    """Those of `links`, which are in the order of rows, from whose both ends no other link leads to a longer path."""
    up: Counter[int] = Counter()
    down: Counter[int] = Counter()
    for a, b in links:
        up[b] = max(up[b], up[a] + 1)
    for a, b in reversed(links):
        down[a] = max(down[a], down[b] + 1)
    return {(a, b) for a, b in links if up[b] == up[a] + 1 and down[a] == down[b] + 1}


def _runs(bones: set[Link]) -> list[list[int]]:
    """Boxes along backbones where these neither fork nor join, from the top."""
    down, up = Counter(a for a, _ in bones), Counter(b for _, b in bones)
    following = {a: b for a, b in sorted(bones) if down[a] == 1 and up[b] == 1}
    runs = []
    for head in sorted(following.keys() - following.values()):
        run = [head]
        while run[-1] in following:
            run.append(following[run[-1]])
        runs.append(run)
    return runs
