"""The plain twin of the random generator (rule R7)."""

from __future__ import annotations

import numpy as np

from purine_ref._fast.geometry import WORD, Array, philox_key, philox_range


def philox(seed: int, stream: str, iteration: int, start: int, count: int) -> Array:
    """Elements start to start + count - 1 of a keyed random sequence, uint64 (rule R7). Raises ValueError.

    Element i is word i % 4 of Philox 4x64-10 (Salmon et al. 2011, Random123) with the counter words
    (i // 4, iteration, 0, 0) and the key words (seed mod 2**64, FNV-1a 64-bit hash of the stream's UTF-8 bytes).
    Each of the ten rounds, modulo 2**64, with high(a, b) = a b // 2**64, maps counter and key as follows:

        c0, c1, c2, c3 <- high(m1, c2) ^ c1 ^ k0, m1 c2, high(m0, c0) ^ c3 ^ k1, m0 c0
        k0, k1         <- k0 + 0x9E3779B97F4A7C15, k1 + 0xBB67AE8584CAA73B

    where m0 = 0xD2E7470EE14C6C93 and m1 = 0xCA5A826395121157; the last counter is the block's four words.
    """
    iteration, block, skip, count = philox_range(iteration, start, count)
    low, high = philox_key(seed, stream)
    # numpy counts up before it makes its first block, so it is given the counter before ours.
    counter = (block + iteration * WORD - 1) % WORD**4
    words = np.random.Philox(counter=counter, key=low + high * WORD).random_raw(skip + count)
    return np.asarray(words, np.uint64)[skip:]
