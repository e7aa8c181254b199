# What several threads do to one word at once, as GCC and Clang spell it; ThreadSanitizer understands these. Included.

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>
    #if !defined(__GNUC__)
    #error "the compiled teams need GCC or Clang; set PURINE_REF_FAST=0 to build without compiled loops"
    #endif
    #define pr_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    #define pr_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
    #define pr_load_ordered(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
    #define pr_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define pr_exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
    #define pr_add(p, v) __atomic_add_fetch((p), (v), __ATOMIC_SEQ_CST)

    /* Whether this was the last to count down. Where 1 is left, nobody else counts, so there is nothing to write. */
    static inline int pr_last(int32_t *count) {
        return __atomic_load_n(count, __ATOMIC_ACQUIRE) == 1 || __atomic_sub_fetch(count, 1, __ATOMIC_ACQ_REL) == 0;
    }

    /* Take a place from `top` on, if nobody else did. */
    static inline int pr_claim(int64_t *top, int64_t place) {
        return __atomic_compare_exchange_n(top, &place, place + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    }

    static inline int64_t pr_now(void) {  /* nanoseconds of a clock that only goes forward */
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    int32_t load32 "pr_load"(int32_t* place) noexcept nogil
    int64_t load64 "pr_load"(int64_t* place) noexcept nogil
    void store32 "pr_store"(int32_t* place, int32_t value) noexcept nogil
    void store64 "pr_store"(int64_t* place, int64_t value) noexcept nogil
    int32_t load32_ordered "pr_load_ordered"(int32_t* place) noexcept nogil
    int64_t load64_ordered "pr_load_ordered"(int64_t* place) noexcept nogil
    void store64_release "pr_store_release"(int64_t* place, int64_t value) noexcept nogil
    int32_t exchange32 "pr_exchange"(int32_t* place, int32_t value) noexcept nogil
    int64_t exchange64 "pr_exchange"(int64_t* place, int64_t value) noexcept nogil
    int32_t add32 "pr_add"(int32_t* place, int32_t value) noexcept nogil
    bint last "pr_last"(int32_t* count) noexcept nogil
    bint claim "pr_claim"(int64_t* top, int64_t place) noexcept nogil
    int64_t now_ns "pr_now"() noexcept nogil

cdef extern from "pythread.h" nogil:
    # A lock of the interpreter's own kind as a bell: it is held, to ring is to let go of it. Waiting needs no GIL.
    ctypedef void* PyThread_type_lock
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock)
