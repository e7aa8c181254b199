/* A port in C11 with POSIX threads: the one-shot form and the session of `purine-drive/1`.
 *
 *     port --hello
 *     port CASE_DIR OUT_DIR
 *     port                      reads requests from the standard input
 */
#include "port.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static Case loaded;
static bool is_loaded;
static int iteration;

static cJSON *hello(void) {
    cJSON *object = cJSON_CreateObject(), *operations = cJSON_CreateArray();
    const char *dtypes[] = {"float32", "float64", "int64"};
    const char *features[] = {"schedules", "streams", "locations", "views", "trace"};
    cJSON_AddStringToObject(object, "protocol", "purine-drive/1");
    cJSON_AddStringToObject(object, "name", "purine-c");
    cJSON_AddStringToObject(object, "version", "1.0");
    for (const Operation *known = OPERATIONS; known->name; known++)
        cJSON_AddItemToArray(operations, cJSON_CreateString(known->name));
    cJSON_AddItemToObject(object, "operations", operations);
    cJSON_AddItemToObject(object, "dtypes", cJSON_CreateStringArray(dtypes, 3));
    cJSON_AddNumberToObject(object, "workers", WORKERS);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) cJSON_AddTrueToObject(object, features[i]);
    return object;
}

static void unload(void) {
    if (is_loaded) free_case(&loaded);
    is_loaded = false;
}

static Reading load(const char *folder) {
    unload();
    Reading reading = read_case(folder, &loaded);
    is_loaded = true;
    iteration = 0;
    clear_trace();
    if (reading != READ) unload();
    return reading;
}

static void note_exchange(const char *name) { trace_event("swapped", iteration, NULL, name, -1); }

/* Go on to an iteration: exchange the pairs but before the first, and fill the sources. */
static bool feed(int next) {
    if (next > 0) exchange_pairs(&loaded, note_exchange);
    iteration = next;
    return load_files(&loaded, cJSON_GetArrayItem(cJSON_GetObjectItem(loaded.text, "feeds"), next));
}

static bool fetch(const char *name, const char *path) {
    Blob *blob = find_blob(&loaded, name);
    if (blob == NULL) return refuse("there is no blob %s", name);
    Tensor tensor = blob->tensor;
    tensor.cells = new_cells(tensor.size);
    get_cells(blob, tensor.cells);
    bool good = write_npy(path, &tensor);
    free(tensor.cells);
    return good;
}

/* Make the folders that lead to a file. */
static bool make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int made = mkdir(path, 0777);
        *slash = '/';
        if (made != 0 && errno != EEXIST) return refuse("%s: its folder cannot be made", path);
    }
    return true;
}

/* Write the blobs that the case expects of this iteration. */
static bool fetch_expected(const char *out) {
    const cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(loaded.text, "expected")) {
        char path[4096];
        if ((int)cJSON_GetObjectItem(entry, "iteration")->valuedouble != iteration) continue;
        snprintf(path, sizeof path, "%s/%s", out, cJSON_GetObjectItem(entry, "file")->valuestring);
        if (!make_folders(path) || !fetch(cJSON_GetObjectItem(entry, "blob")->valuestring, path)) return false;
    }
    return true;
}

static bool run_all(const char *out) {
    char path[4096];
    const cJSON *schedule = cJSON_GetObjectItem(loaded.text, "schedule");
    for (int next = 0; next < loaded.iterations; next++)
        if (!feed(next) || !run_graph(&loaded, next, schedule) || !fetch_expected(out)) return false;
    snprintf(path, sizeof path, "%s/trace.jsonl", out);
    return write_trace(path);
}

/* The one-shot form; returns the exit code. */
static int run_once(const char *folder, const char *out) {
    Reading reading = load(folder);
    if (reading == READ && run_all(out)) return 0;
    fprintf(stderr, "%s: %s\n", reading == UNSUPPORTED ? "unsupported" : "failed", problem);
    return reading == UNSUPPORTED ? 3 : 1;
}

static void add_error(cJSON *reply, const char *kind) {
    cJSON *error = cJSON_AddObjectToObject(reply, "error");
    cJSON_AddStringToObject(error, "kind", kind);
    cJSON_AddStringToObject(error, "message", problem);
}

static const char *string_of(const cJSON *request, const char *name) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(request, name));
    return text ? text : "";
}

/* Do what is asked for; returns the kind of error, or NULL. */
static const char *act(const cJSON *request, const char *what) {
    if (strcmp(what, "load") == 0) {
        Reading reading = load(string_of(request, "case"));
        return reading == READ ? NULL : reading == UNSUPPORTED ? "unsupported" : "indefinite";
    }
    if (strcmp(what, "hello") == 0 || strcmp(what, "stop") == 0) return NULL;
    if (!is_loaded) {
        refuse("no case is loaded");
        return "definite";
    }
    if (strcmp(what, "feed") == 0)
        return feed((int)cJSON_GetObjectItem(request, "iteration")->valuedouble) ? NULL : "indefinite";
    if (strcmp(what, "run") == 0)
        return run_graph(&loaded, iteration, cJSON_GetObjectItem(request, "schedule")) ? NULL : "definite";
    if (strcmp(what, "fetch") == 0)
        return fetch(string_of(request, "blob"), string_of(request, "file")) ? NULL : "definite";
    if (strcmp(what, "trace") == 0) return write_trace(string_of(request, "file")) ? NULL : "definite";
    refuse("there is no request %s", what);
    return "definite";
}

/* Answer one request on the standard output; returns whether it was the last. */
static bool answer(const char *line) {
    cJSON *request = cJSON_Parse(line);
    const char *what = string_of(request, "do");
    const char *kind = act(request, what);
    cJSON *reply = strcmp(what, "hello") == 0 ? hello() : cJSON_CreateObject();
    const cJSON *seq = cJSON_GetObjectItem(request, "seq");
    if (seq) cJSON_AddItemToObject(reply, "seq", cJSON_Duplicate(seq, true));
    cJSON_AddBoolToObject(reply, "ok", kind == NULL);
    if (kind) add_error(reply, kind);
    char *text = cJSON_PrintUnformatted(reply);
    puts(text);
    fflush(stdout);
    bool last = strcmp(what, "stop") == 0;
    cJSON_free(text);
    cJSON_Delete(reply);
    cJSON_Delete(request);
    return last;
}

int main(int count, char **words) {
    int code = 0;
    if (count == 1) {
        char *line = NULL;
        size_t room = 0;
        while (getline(&line, &room, stdin) > 0 && !answer(line)) {
        }
        free(line);
    } else if (strcmp(words[1], "--hello") == 0) {
        cJSON *object = hello();
        char *text = cJSON_PrintUnformatted(object);
        puts(text);
        cJSON_free(text);
        cJSON_Delete(object);
    } else if (count == 3) {
        code = run_once(words[1], words[2]);
    } else {
        fprintf(stderr, "usage: port --hello | port CASE_DIR OUT_DIR | port\n");
        code = 64;
    }
    unload();
    return code;
}
