// The random generator (rule R7). Twin: `_fast/draws.py`.
#include "common.cuh"

struct Key {
    word low, high;
};

// `count` words of the sequence, from word `skip` of block `first` on. A thread makes a whole block of Philox 4x64-10
// (Salmon et al. 2011); all arithmetic is modulo 2**64. The iteration lies in the GPU's memory, so that a recorded
// launch draws anew in each iteration.
extern "C" __global__ void philox(
    word* words, word first, long long skip, long long count, const word* iteration, Key key
) {
    const word m0 = 0xD2E7470EE14C6C93ULL, m1 = 0xCA5A826395121157ULL;
    long long blocks = (skip + count + 3) / 4;
    for (long long item = first_item(); item < blocks; item += item_step()) {
        word c0 = first + (word)item, c1 = *iteration, c2 = 0, c3 = 0, k0 = key.low, k1 = key.high;
        for (int round = 0; round < 10; round++) {
            word left = __umul64hi(m0, c0), right = __umul64hi(m1, c2);
            word old1 = c1, old3 = c3;
            c1 = m1 * c2;
            c3 = m0 * c0;
            c0 = right ^ old1 ^ k0;
            c2 = left ^ old3 ^ k1;
            k0 += 0x9E3779B97F4A7C15ULL;
            k1 += 0xBB67AE8584CAA73BULL;
        }
        const word block[4] = {c0, c1, c2, c3};
        for (long long k = 0; k < 4; k++) {
            long long i = 4 * item + k - skip;
            if (i >= 0 && i < count) words[i] = block[k];
        }
    }
}
