// What lets a `.cu` file be compiled as C++, and its kernels be launched by loops over the grid: the keywords and
// built-in variables of CUDA that the kernels use, and for each kernel an entry that takes its arguments as
// `cuLaunchKernel` does, as an array of pointers to their values.
//
// Compile with -DREAL=float or -DREAL=double and -ffp-contract=off. Include this file, then the `.cu` file, then write
// EXPORT(kernel) for each kernel.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline

using std::pow;
using std::sqrt;

struct Dim {
    unsigned int x;
};

static Dim threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

namespace shim {

// The threads one after the other: in rising order, or in falling order, which no result may depend on.
template <typename... Parameters, std::size_t... I>
void launch(
    void (*kernel)(Parameters...), unsigned int grid, unsigned int block, int falling, void** arguments,
    std::index_sequence<I...>
) {
    gridDim.x = grid;
    blockDim.x = block;
    unsigned long long threads = (unsigned long long)grid * block;
    for (unsigned long long k = 0; k < threads; k++) {
        unsigned long long thread = falling ? threads - 1 - k : k;
        blockIdx.x = (unsigned int)(thread / block);
        threadIdx.x = (unsigned int)(thread % block);
        kernel(*static_cast<Parameters*>(arguments[I])...);
    }
}

// A word for a parameter: in/out for a pointer that is read/written, with the bytes of an element; by for a value.
template <typename T>
std::string word() {
    if constexpr (std::is_pointer<T>::value) {
        using Element = typename std::remove_pointer<T>::type;
        return (std::is_const<Element>::value ? "in" : "out") + std::to_string(sizeof(Element)) + " ";
    } else {
        return "by" + std::to_string(sizeof(T)) + " ";
    }
}

template <typename... Parameters>
std::string describe(void (*)(Parameters...)) {
    return (word<Parameters>() + ...);
}

template <typename... Parameters>
void start(void (*kernel)(Parameters...), unsigned int grid, unsigned int block, int falling, void** arguments) {
    launch(kernel, grid, block, falling, arguments, std::index_sequence_for<Parameters...>{});
}

}  // namespace shim

#define EXPORT(kernel)                                                                                      \
    extern "C" void launch_##kernel(unsigned int grid, unsigned int block, int falling, void** arguments) { \
        shim::start(kernel, grid, block, falling, arguments);                                               \
    }                                                                                                       \
    extern "C" const char* describe_##kernel() {                                                            \
        static const std::string text = shim::describe(kernel);                                             \
        return text.c_str();                                                                                \
    }
