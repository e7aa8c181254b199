// Taskflow: a task for each operator, and with blobs one for each blob, which its operator precedes.
#include <taskflow/taskflow.hpp>

#include "bench.hpp"

int main(int count, char** values) {
    const auto [predecessors, workers, blobs] = bench::read(count, values);
    tf::Executor executor(workers);
    tf::Taskflow flow;
    std::vector<tf::Task> readable;  // what consumers of an operator's blob wait for
    for (const auto& before : predecessors) {
        tf::Task task = flow.emplace([] { bench::nothing(); });
        for (int other : before) readable[other].precede(task);
        readable.push_back(task);
        if (blobs) {
            readable.back() = flow.emplace([] { bench::nothing(); });
            task.precede(readable.back());
        }
    }
    bench::serve([&] { executor.run(flow).wait(); });
}
