"""Where the blobs' elements are. A view has none of its own: it is a list of places in the memory of its root."""

import itertools
import math

import npy


class Memory:
    """The memory of one case. Persistent blobs that `initial` does not name hold zeros."""

    def __init__(self, case):
        self.case = case
        self._cells = {}  # root -> its elements
        self._places = {}  # view -> its root, and where each of its elements is there
        for blob in case.blobs.values():
            if blob.parent is None:
                self._cells[blob.name] = npy.cells(blob.dtype, [0] * math.prod(blob.shape))
            else:
                self._places[blob.name] = self._inside(blob)
        for name, file in case.initial.items():
            self.load(name, file)

    def _inside(self, blob):
        """The view's elements in C order: the box of its parent, whose elements may be places in turn."""
        parent = blob.parent
        steps = [math.prod(parent.shape[axis + 1 :]) for axis in range(len(parent.shape))]
        axes = [
            range(start * step, stop * step, step) for (start, stop), step in zip(blob.box, steps, strict=True)
        ]
        flat = [sum(offsets) for offsets in itertools.product(*axes)]
        root, places = self._places.get(parent.name, (parent.name, None))
        return root, flat if places is None else [places[i] for i in flat]

    def load(self, name, file):
        """Fill a blob from a file of the case."""
        blob = self.case.blobs[name]
        self.put(blob, npy.read(self.case.folder / file, blob.dtype, blob.shape))

    def get(self, blob):
        """The elements of a blob, in C order."""
        if blob.name in self._places:
            root, places = self._places[blob.name]
            return [self._cells[root][i] for i in places]
        return list(self._cells[blob.name])

    def put(self, blob, values):
        """Write all elements of a blob, rounded to its dtype."""
        if blob.name in self._places:
            root, places = self._places[blob.name]
            for i, value in zip(places, values, strict=True):
                self._cells[root][i] = value
        else:
            self._cells[blob.name][:] = npy.cells(blob.dtype, values)

    def exchange(self, current, following):
        """Exchange the arrays of a pair (rule R6)."""
        cells = self._cells
        cells[current.name], cells[following.name] = cells[following.name], cells[current.name]
