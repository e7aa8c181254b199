// A token that two threads hand to and fro: each sleeps in the kernel until the other wakes it. No graph is read.
#include <atomic>
#include <thread>

#include "bench.hpp"

constexpr int TURNS = 1000;

int main() {
    bench::serve([] {
        std::atomic<int> turn{0};
        const auto play = [&](int own) {
            for (int i = 0; i < TURNS / 2; ++i) {
                for (int now; (now = turn.load()) != own;) turn.wait(now);
                turn.store(1 - own);
                turn.notify_one();
            }
        };
        std::thread other(play, 1);
        play(0);
        other.join();
    });
}
