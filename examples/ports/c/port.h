/* What the files of this port share: tensors, a case with its graph and memory, the dispatcher, the trace. */
#ifndef PORT_H
#define PORT_H

#include <cJSON.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define MAX_AXES 8

typedef enum { FLOAT32, FLOAT64, INT64 } Dtype;

/* One element. Reals are kept as double, rounded to the tensor's dtype whenever they are stored. */
typedef union {
    double real;
    int64_t whole;
} Cell;

typedef struct {
    Dtype dtype;
    int axes;
    long shape[MAX_AXES];
    long size;   /* elements */
    Cell *cells; /* in C order */
} Tensor;

typedef struct Blob Blob;
typedef struct Operator Operator;

/* What an operator computes: it fills the cells of `outputs`, which are 0. */
typedef void Compute(const cJSON *attributes, const Tensor *inputs, int count, Tensor *outputs, int results);

typedef struct {
    Operator *op;
    int output; /* which of its outputs */
} Edge;

struct Blob {
    const char *name;
    Tensor tensor; /* without cells where `root` is another blob */
    int rank;
    Blob *root;     /* the blob that has the memory: itself, or what it is a view of */
    long *places;   /* of a view: where each of its elements is in the root's cells */
    Edge *producers; /* one for each edge, in the order of the edges (rule R4) */
    int producer_count;
    Operator **consumers; /* one for each edge: a blob wired twice counts twice (rule R2) */
    int consumer_count;
    int missing;  /* in a run: producers that have yet to deliver */
    Cell **parts; /* in a run, where there are several producers: what each has delivered */
};

struct Operator {
    const char *name;
    Compute *compute;
    const cJSON *attributes;
    Blob **inputs, **outputs;
    int input_count, output_count;
    bool crosses_ranks; /* a copy from one rank to another */
    int lane;           /* operators of one stream of one device have one number; -1 on a CPU */
    int waiting;        /* in a run: input edges that are not satisfied */
};

typedef struct {
    cJSON *text; /* owns all names */
    const char *folder;
    Blob *blobs;
    Operator *operators;
    int blob_count, operator_count, iterations;
} Case;

/* Why something failed, for the thread that saw it. */
extern _Thread_local char problem[512];
bool refuse(const char *format, ...) __attribute__((format(printf, 1, 2))); /* sets `problem`, returns false */

/* tensors.c */
long product(const long *shape, int from, int to);
Cell *new_cells(long size);
void store(Tensor *tensor, long at, double value); /* rounds to the dtype */
bool read_npy(const char *path, Tensor *tensor);   /* into its cells; shape and dtype are known */
bool write_npy(const char *path, const Tensor *tensor);

/* cases.c */
typedef enum { READ, UNSUPPORTED, BROKEN } Reading;
Reading read_case(const char *folder, Case *loaded);
void free_case(Case *loaded);
Blob *find_blob(Case *loaded, const char *name);
Operator *find_operator(Case *loaded, const char *name);
bool load_files(Case *loaded, const cJSON *files); /* an object: blob -> file */
void get_cells(const Blob *blob, Cell *cells);     /* a view's elements lie in its root */
void put_cells(Blob *blob, const Cell *cells);
void exchange_pairs(Case *loaded, void (*exchanged)(const char *name));

/* operations.c, windows.c */
typedef struct {
    const char *name;
    Compute *compute;
} Operation;
extern const Operation OPERATIONS[]; /* ends with a name of NULL */
Compute convolve, convolve_data, convolve_weight, pool_maximum, scatter_maximum;
long whole_of(const cJSON *attributes, const char *name);
void pair_of(const cJSON *attributes, const char *name, long pair[2]);
void begins_of(const cJSON *attributes, long begins[2]); /* the pads before height and width */

/* dispatcher.c */
#define WORKERS 4
bool run_graph(Case *loaded, int iteration, const cJSON *schedule); /* false: the run failed, the next one is clean */

/* tracing.c; `op` and `blob` may be NULL. */
void clear_trace(void);
void trace_event(const char *event, int iteration, const char *op, const char *blob, int worker);
bool write_trace(const char *path);

#endif
