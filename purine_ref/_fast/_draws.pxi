# The random generator: the fellow of `draws.py`.


def philox(seed, stream, iteration, start, count):
    """Elements start to start + count - 1 of a keyed sequence, uint64. Raises ValueError; see the plain twin."""
    iteration, block, skip, count = philox_range(iteration, start, count)
    low, high = philox_key(seed, stream)
    words = np.empty(count, np.uint64)
    _philox(words, block, skip, iteration, low, high)
    return words


cdef void _philox(
    uint64_t[::1] words, uint64_t block, int skip, uint64_t iteration, uint64_t low, uint64_t high
) noexcept:
    cdef uint64_t[4] word
    cdef Py_ssize_t i = 0, k, count = words.shape[0]
    with nogil:
        while i < count:
            if skip == 0 and i + 4 <= count:  # a whole block goes where it belongs at once
                _philox_block(&words[i], block, iteration, low, high)
                i += 4
                block += 1
                continue
            _philox_block(word, block, iteration, low, high)
            for k in range(skip, min(4, skip + count - i)):
                words[i] = word[k]
                i += 1
            block, skip = block + 1, 0


cdef inline void _philox_block(
    uint64_t* word, uint64_t block, uint64_t iteration, uint64_t low, uint64_t high
) noexcept nogil:
    # Philox 4x64 with ten rounds (Salmon et al. 2011); all arithmetic is modulo 2**64.
    cdef uint64_t first = 0xD2E7470EE14C6C93ULL, second = 0xCA5A826395121157ULL
    cdef uint64_t w0 = block, w1 = iteration, w2 = 0, w3 = 0, left, right
    cdef int round_
    for round_ in range(10):
        left, right = purine_high_word(first, w0), purine_high_word(second, w2)
        w0, w1, w2, w3 = right ^ w1 ^ low, second * w2, left ^ w3 ^ high, first * w0
        low += 0x9E3779B97F4A7C15ULL
        high += 0xBB67AE8584CAA73BULL
    word[0], word[1], word[2], word[3] = w0, w1, w2, w3
