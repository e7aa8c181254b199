/* The dispatcher: starts an operator when all its input edges are satisfied (rule R2).
 *
 * Four workers share one lock, which guards all that changes in a run; operators compute outside it. A worker sleeps
 * while nothing may start, and is woken when something has changed.
 */
#include "port.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Case *loaded;
    int iteration;
    const cJSON *schedule; /* the next operator's name, or NULL where there is no order */
    bool ordered;
    Operator **ready; /* in the order in which they became so */
    int ready_count, left, computing;
    bool *busy; /* lanes on which an operator computes */
    bool failed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} Run;

typedef struct {
    Run *run;
    int number;
} Worker;

/* An operator that may start, taken from the queue: the first whose lane is free, or the next of the schedule. */
static Operator *take_startable(Run *run) {
    for (int i = 0; i < run->ready_count; i++) {
        Operator *op = run->ready[i];
        if (run->ordered && strcmp(op->name, run->schedule->valuestring) != 0) continue;
        if (op->lane >= 0 && run->busy[op->lane]) continue;
        run->ready_count--;
        memmove(&run->ready[i], &run->ready[i + 1], (size_t)(run->ready_count - i) * sizeof *run->ready);
        if (run->ordered) run->schedule = run->schedule->next;
        if (op->lane >= 0) run->busy[op->lane] = true;
        return op;
    }
    return NULL;
}

/* The next operator, or NULL when the run is over. */
static Operator *take(Run *run, int worker) {
    Operator *op = NULL;
    pthread_mutex_lock(&run->lock);
    while (run->left > 0 && !run->failed && (op = take_startable(run)) == NULL) {
        if (run->computing > 0)
            pthread_cond_wait(&run->changed, &run->lock);
        else
            run->failed = true; /* nobody can ever start: the schedule is not an order of this graph */
    }
    if (op) {
        run->computing++;
        trace_event("start", run->iteration, op->name, NULL, worker);
    } else {
        pthread_cond_broadcast(&run->changed);
    }
    pthread_mutex_unlock(&run->lock);
    return op;
}

/* Add the contributions in the order of the edges (rule R4), each sum rounded to the dtype. */
static void add_up(Run *run, Blob *blob) {
    Tensor total = blob->tensor;
    total.cells = blob->parts[0];
    for (int part = 0; part < blob->producer_count; part++) {
        for (long i = 0; part > 0 && i < total.size; i++)
            store(&total, i, total.cells[i].real + blob->parts[part][i].real);
        trace_event("added", run->iteration, blob->producers[part].op->name, blob->name, -1);
    }
    put_cells(blob, total.cells);
    for (int part = 0; part < blob->producer_count; part++) {
        free(blob->parts[part]);
        blob->parts[part] = NULL;
    }
}

/* All producers have delivered: satisfy the edges of the consumers. */
static void complete(Run *run, Blob *blob) {
    if (blob->producer_count > 1) add_up(run, blob);
    trace_event("ready", run->iteration, NULL, blob->name, -1);
    for (int i = 0; i < blob->consumer_count; i++)
        if (--blob->consumers[i]->waiting == 0) run->ready[run->ready_count++] = blob->consumers[i];
}

/* Keep a contribution to a blob with several producers until all are there. */
static void keep_part(Blob *blob, const Operator *op, int output, Cell *cells) {
    for (int part = 0; part < blob->producer_count; part++)
        if (blob->producers[part].op == op && blob->producers[part].output == output) blob->parts[part] = cells;
}

/* Write what an operator made; its blobs that are complete release their consumers. Takes the outputs' cells. */
static void deliver(Run *run, Operator *op, Tensor *outputs, int worker) {
    pthread_mutex_lock(&run->lock);
    for (int i = 0; i < op->output_count; i++) {
        if (op->outputs[i]->producer_count > 1) {
            keep_part(op->outputs[i], op, i, outputs[i].cells);
        } else {
            put_cells(op->outputs[i], outputs[i].cells);
            free(outputs[i].cells);
        }
    }
    if (op->crosses_ranks) { /* two halves, here in one memory */
        trace_event("sent", run->iteration, op->name, NULL, -1);
        trace_event("received", run->iteration, op->name, NULL, -1);
    }
    trace_event("end", run->iteration, op->name, NULL, worker);
    if (op->lane >= 0) run->busy[op->lane] = false;
    run->left--;
    run->computing--;
    for (int i = 0; i < op->output_count; i++)
        if (--op->outputs[i]->missing == 0) complete(run, op->outputs[i]);
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

static Tensor *copy_of(Blob **blobs, int count, bool filled) {
    Tensor *tensors = calloc(count > 0 ? (size_t)count : 1, sizeof *tensors);
    if (tensors == NULL) abort();
    for (int i = 0; i < count; i++) {
        tensors[i] = blobs[i]->tensor;
        tensors[i].cells = new_cells(tensors[i].size);
        if (filled) get_cells(blobs[i], tensors[i].cells);
    }
    return tensors;
}

static void *work(void *argument) {
    Worker *worker = argument;
    Run *run = worker->run;
    Operator *op;
    while ((op = take(run, worker->number)) != NULL) {
        Tensor *inputs = copy_of(op->inputs, op->input_count, true);
        Tensor *outputs = copy_of(op->outputs, op->output_count, false);
        op->compute(op->attributes, inputs, op->input_count, outputs, op->output_count);
        deliver(run, op, outputs, worker->number);
        for (int i = 0; i < op->input_count; i++) free(inputs[i].cells);
        free(inputs);
        free(outputs);
    }
    return NULL;
}

/* Set the counters of a run from the graph. */
static void count_edges(Run *run) {
    Case *loaded = run->loaded;
    for (int i = 0; i < loaded->blob_count; i++) {
        Blob *blob = &loaded->blobs[i];
        blob->missing = blob->producer_count;
        blob->parts = calloc(blob->producer_count > 0 ? (size_t)blob->producer_count : 1, sizeof *blob->parts);
    }
    for (int i = 0; i < loaded->operator_count; i++) {
        Operator *op = &loaded->operators[i];
        op->waiting = 0;
        for (int input = 0; input < op->input_count; input++) op->waiting += op->inputs[input]->producer_count > 0;
        if (op->waiting == 0) run->ready[run->ready_count++] = op;
    }
}

/* Whether a schedule has a name for each operator. One that is no order of the graph fails when it is followed. */
static bool is_legal(Case *loaded, const cJSON *schedule) {
    if (cJSON_GetArraySize(schedule) != loaded->operator_count)
        return refuse("a schedule of %d names for %d operators", cJSON_GetArraySize(schedule), loaded->operator_count);
    const cJSON *name;
    cJSON_ArrayForEach(name, schedule) if (find_operator(loaded, name->valuestring) == NULL)
        return refuse("a schedule with %s, which is no operator", name->valuestring);
    return true;
}

bool run_graph(Case *loaded, int iteration, const cJSON *schedule) {
    bool ordered = cJSON_IsArray(schedule);
    if (ordered && !is_legal(loaded, schedule)) return false;
    size_t count = (size_t)loaded->operator_count + 1;
    Run run = {.loaded = loaded, .iteration = iteration, .left = loaded->operator_count, .ordered = ordered,
               .schedule = ordered ? schedule->child : NULL, .lock = PTHREAD_MUTEX_INITIALIZER,
               .changed = PTHREAD_COND_INITIALIZER};
    run.ready = calloc(count, sizeof *run.ready);
    run.busy = calloc(count, sizeof *run.busy);
    if (run.ready == NULL || run.busy == NULL) abort();
    count_edges(&run);
    trace_event("begin", iteration, NULL, NULL, -1);
    pthread_t threads[WORKERS];
    Worker workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (Worker){&run, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) abort();
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    trace_event(run.failed ? "failed" : "finish", iteration, NULL, NULL, -1);
    for (int i = 0; i < loaded->blob_count; i++) free(loaded->blobs[i].parts);
    free(run.ready);
    free(run.busy);
    return !run.failed || refuse("no operator can start: the schedule is not an order of this graph");
}
