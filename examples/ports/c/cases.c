/* A case folder: the graph that it describes, and the memory of its blobs. */
#include "port.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *field(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *text_of(const cJSON *object, const char *name) {
    const char *text = cJSON_GetStringValue(field(object, name));
    return text ? text : "";
}

static void *many(int count, size_t size) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (memory == NULL) abort();
    return memory;
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *text = many((int)length + 1, 1);
    if (fread(text, 1, (size_t)length, file) != (size_t)length) text[0] = 0;
    fclose(file);
    return text;
}

Blob *find_blob(Case *loaded, const char *name) {
    for (int i = 0; i < loaded->blob_count; i++)
        if (strcmp(loaded->blobs[i].name, name) == 0) return &loaded->blobs[i];
    return NULL;
}

Operator *find_operator(Case *loaded, const char *name) {
    for (int i = 0; i < loaded->operator_count; i++)
        if (strcmp(loaded->operators[i].name, name) == 0) return &loaded->operators[i];
    return NULL;
}

/* The places of a view's elements, in C order: the box of its parent, whose elements may be places in turn. */
static void place_view(Blob *blob, const Blob *parent, const cJSON *box) {
    const Tensor *whole = &parent->tensor;
    blob->root = parent->root;
    blob->places = many((int)blob->tensor.size, sizeof(long));
    for (long i = 0; i < blob->tensor.size; i++) {
        long rest = i, at = 0, step = 1;
        for (int axis = whole->axes - 1; axis >= 0; axis--) {
            const cJSON *bounds = cJSON_GetArrayItem(box, axis);
            long start = (long)cJSON_GetArrayItem(bounds, 0)->valuedouble;
            long length = (long)cJSON_GetArrayItem(bounds, 1)->valuedouble - start;
            at += (start + rest % length) * step;
            rest /= length;
            step *= whole->shape[axis];
        }
        blob->places[i] = parent->places ? parent->places[at] : at;
    }
}

static bool read_blob(Case *loaded, Blob *blob, const cJSON *entry) {
    Tensor *tensor = &blob->tensor;
    const char *dtype = text_of(entry, "dtype");
    const cJSON *length, *view = field(entry, "view");
    blob->name = text_of(entry, "name");
    blob->rank = (int)field(field(entry, "location"), "rank")->valuedouble;
    tensor->dtype = strcmp(dtype, "float32") == 0 ? FLOAT32 : strcmp(dtype, "float64") == 0 ? FLOAT64 : INT64;
    cJSON_ArrayForEach(length, field(entry, "shape")) {
        if (tensor->axes == MAX_AXES) return refuse("blob %s has more than %d axes", blob->name, MAX_AXES);
        tensor->shape[tensor->axes++] = (long)length->valuedouble;
    }
    tensor->size = product(tensor->shape, 0, tensor->axes);
    blob->root = blob;
    if (view)
        place_view(blob, find_blob(loaded, text_of(view, "parent")), field(view, "box"));
    else
        tensor->cells = new_cells(tensor->size);
    return true;
}

/* A number for each stream of each device, which computes one operator at a time. A CPU has any number of workers. */
static int lane_of(Case *loaded, const cJSON *entry, const cJSON *all) {
    const cJSON *location = field(entry, "location");
    if (field(location, "device")->valuedouble < 0) return -1;
    for (int i = 0; i < loaded->operator_count; i++) {
        const cJSON *other = cJSON_GetArrayItem(all, i);
        if (cJSON_Compare(field(other, "location"), location, true) &&
            strcmp(text_of(other, "stream"), text_of(entry, "stream")) == 0)
            return i;
    }
    return loaded->operator_count;
}

static Blob **read_ends(Case *loaded, const cJSON *names, int *count) {
    Blob **blobs = many(cJSON_GetArraySize(names), sizeof *blobs);
    const cJSON *name;
    cJSON_ArrayForEach(name, names) blobs[(*count)++] = find_blob(loaded, name->valuestring);
    return blobs;
}

static bool read_operator(Case *loaded, Operator *op, const cJSON *entry, const cJSON *all) {
    const char *operation = text_of(entry, "operation");
    for (const Operation *known = OPERATIONS; known->name; known++)
        if (strcmp(known->name, operation) == 0) op->compute = known->compute;
    if (op->compute == NULL) return refuse("operation %s", operation);
    const cJSON *value;
    cJSON_ArrayForEach(value, field(entry, "attributes"))
        if (fabs(value->valuedouble) > 9007199254740992.0 && value->valuedouble == floor(value->valuedouble))
            return refuse("operation %s: an integer that a double cannot hold", operation);
    op->name = text_of(entry, "name");
    op->attributes = field(entry, "attributes");
    op->inputs = read_ends(loaded, field(entry, "inputs"), &op->input_count);
    op->outputs = read_ends(loaded, field(entry, "outputs"), &op->output_count);
    op->lane = lane_of(loaded, entry, all);
    op->crosses_ranks = strcmp(operation, "Copy") == 0 && op->inputs[0]->rank != op->outputs[0]->rank;
    for (int i = 0; i < op->input_count; i++) {
        Blob *blob = op->inputs[i];
        blob->consumers = realloc(blob->consumers, (size_t)(blob->consumer_count + 1) * sizeof *blob->consumers);
        blob->consumers[blob->consumer_count++] = op;
    }
    for (int i = 0; i < op->output_count; i++) {
        Blob *blob = op->outputs[i];
        blob->producers = realloc(blob->producers, (size_t)(blob->producer_count + 1) * sizeof *blob->producers);
        blob->producers[blob->producer_count++] = (Edge){op, i};
    }
    return true;
}

Reading read_case(const char *folder, Case *loaded) {
    char path[4096];
    memset(loaded, 0, sizeof *loaded);
    loaded->folder = strdup(folder);
    snprintf(path, sizeof path, "%s/case.json", folder);
    char *text = read_file(path);
    loaded->text = text ? cJSON_Parse(text) : NULL;
    free(text);
    if (loaded->text == NULL || strcmp(text_of(loaded->text, "format"), "purine-case/1") != 0) {
        refuse("%s: no case of format purine-case/1", path);
        return BROKEN;
    }
    const cJSON *graph = field(loaded->text, "graph"), *entry;
    const cJSON *blobs = field(graph, "blobs"), *operators = field(graph, "operators");
    loaded->iterations = (int)field(loaded->text, "iterations")->valuedouble;
    loaded->blobs = many(cJSON_GetArraySize(blobs), sizeof *loaded->blobs);
    loaded->operators = many(cJSON_GetArraySize(operators), sizeof *loaded->operators);
    cJSON_ArrayForEach(entry, blobs) {
        if (!read_blob(loaded, &loaded->blobs[loaded->blob_count], entry)) return UNSUPPORTED;
        loaded->blob_count++;
    }
    cJSON_ArrayForEach(entry, operators) {
        if (!read_operator(loaded, &loaded->operators[loaded->operator_count], entry, operators)) return UNSUPPORTED;
        loaded->operator_count++;
    }
    return load_files(loaded, field(loaded->text, "initial")) ? READ : BROKEN;
}

void free_case(Case *loaded) {
    for (int i = 0; i < loaded->blob_count; i++) {
        Blob *blob = &loaded->blobs[i];
        free(blob->tensor.cells);
        free(blob->places);
        free(blob->producers);
        free(blob->consumers);
    }
    for (int i = 0; i < loaded->operator_count; i++) {
        free(loaded->operators[i].inputs);
        free(loaded->operators[i].outputs);
    }
    free(loaded->blobs);
    free(loaded->operators);
    free((char *)loaded->folder);
    cJSON_Delete(loaded->text);
    memset(loaded, 0, sizeof *loaded);
}

void get_cells(const Blob *blob, Cell *cells) {
    for (long i = 0; i < blob->tensor.size; i++)
        cells[i] = blob->root->tensor.cells[blob->places ? blob->places[i] : i];
}

void put_cells(Blob *blob, const Cell *cells) {
    for (long i = 0; i < blob->tensor.size; i++)
        blob->root->tensor.cells[blob->places ? blob->places[i] : i] = cells[i];
}

bool load_files(Case *loaded, const cJSON *files) {
    const cJSON *file;
    cJSON_ArrayForEach(file, files) {
        char path[4096];
        Blob *blob = find_blob(loaded, file->string);
        if (blob == NULL) return refuse("there is no blob %s", file->string);
        Tensor tensor = blob->tensor;
        tensor.cells = new_cells(tensor.size);
        snprintf(path, sizeof path, "%s/%s", loaded->folder, file->valuestring);
        bool good = read_npy(path, &tensor);
        if (good) put_cells(blob, tensor.cells);
        free(tensor.cells);
        if (!good) return false;
    }
    return true;
}

void exchange_pairs(Case *loaded, void (*exchanged)(const char *name)) {
    const cJSON *pair;
    cJSON_ArrayForEach(pair, field(field(loaded->text, "graph"), "pairs")) {
        Blob *current = find_blob(loaded, cJSON_GetArrayItem(pair, 0)->valuestring);
        Blob *following = find_blob(loaded, cJSON_GetArrayItem(pair, 1)->valuestring);
        Cell *kept = current->tensor.cells;
        current->tensor.cells = following->tensor.cells;
        following->tensor.cells = kept;
        exchanged(current->name);
    }
}
