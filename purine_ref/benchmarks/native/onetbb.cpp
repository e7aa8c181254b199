// oneTBB's flow graph: a continue_node for each operator, and with blobs one for each blob, behind its operator.
#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>

#include <deque>

#include "bench.hpp"

namespace flow = oneapi::tbb::flow;

int main(int count, char** values) {
    const auto [predecessors, workers, blobs] = bench::read(count, values);
    const oneapi::tbb::global_control limit(oneapi::tbb::global_control::max_allowed_parallelism, workers);
    using Node = flow::continue_node<flow::continue_msg>;
    flow::graph graph;
    flow::broadcast_node<flow::continue_msg> start(graph);
    std::deque<Node> nodes;         // a node must stay where it was made
    std::vector<Node*> readable;  // what consumers of an operator's blob wait for
    const auto make = [&] {
        nodes.emplace_back(graph, [](const flow::continue_msg&) { bench::nothing(); });
        return &nodes.back();
    };
    for (const auto& before : predecessors) {
        Node* node = make();
        for (int other : before) flow::make_edge(*readable[other], *node);
        if (before.empty()) flow::make_edge(start, *node);
        readable.push_back(node);
        if (blobs) {
            readable.back() = make();
            flow::make_edge(*node, *readable.back());
        }
    }
    bench::serve([&] {
        start.try_put(flow::continue_msg());
        graph.wait_for_all();
    });
}
