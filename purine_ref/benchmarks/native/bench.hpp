// What the C++ peers share: the graph, operators that do nothing, and the answers to the benchmark.
//
// A program gets three arguments: a file, the number of workers, and 1 where blobs are to be tasks of their own. The
// file has a line for each operator, with the numbers of the operators that it reads. For each line on its input the
// program runs the graph ROUNDS times, and answers with the medians in seconds: of the clock on the wall, then of the
// processor's time over all threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace bench {

constexpr int ROUNDS = 5;

using Predecessors = std::vector<std::vector<int>>;

// An operator: a call that the compiler must not leave out.
[[gnu::noinline]] inline void nothing() { asm volatile(""); }

struct Arguments {
    Predecessors predecessors;
    int workers;
    bool blobs;
};

inline Arguments read(int count, char** values) {
    if (count != 4) {
        std::fprintf(stderr, "usage: %s GRAPH WORKERS BLOBS\n", values[0]);
        std::exit(64);
    }
    std::ifstream file(values[1]);
    Predecessors found;
    for (std::string line; std::getline(file, line);) {
        std::istringstream numbers(line);
        found.emplace_back();
        for (int number; numbers >> number;) found.back().push_back(number);
    }
    return {found, std::atoi(values[2]), values[3][0] == '1'};
}

inline double processor() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Answer until the input ends.
template <class Run>
void serve(Run run) {
    using Clock = std::chrono::steady_clock;
    for (std::string line; std::getline(std::cin, line);) {
        std::vector<double> wall, work;
        for (int round = 0; round < ROUNDS; ++round) {
            const double before = processor();
            const auto start = Clock::now();
            run();
            wall.push_back(std::chrono::duration<double>(Clock::now() - start).count());
            work.push_back(processor() - before);
        }
        std::printf("%.9f %.9f\n", median(wall), median(work));
        std::fflush(stdout);
    }
}

}  // namespace bench
