/* The trace of all runs since a case was loaded, as text that grows. Any thread may add a line. */
#include "port.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static size_t length, room;
static long seq;

static void append(const char *words) {
    size_t more = strlen(words);
    if (length + more + 1 > room) {
        room = 2 * (length + more + 1);
        text = realloc(text, room);
        if (text == NULL) abort();
    }
    memcpy(text + length, words, more + 1);
    length += more;
}

/* A key and a JSON string. */
static void append_string(const char *key, const char *value) {
    cJSON *string = cJSON_CreateString(value);
    char *quoted = cJSON_PrintUnformatted(string);
    append(", \"");
    append(key);
    append("\": ");
    append(quoted);
    cJSON_free(quoted);
    cJSON_Delete(string);
}

void clear_trace(void) {
    pthread_mutex_lock(&lock);
    length = 0;
    seq = 0;
    append("{\"format\": \"purine-trace/1\"}\n");
    pthread_mutex_unlock(&lock);
}

void trace_event(const char *event, int iteration, const char *op, const char *blob, int worker) {
    char begin[128], name[16];
    pthread_mutex_lock(&lock);
    snprintf(begin, sizeof begin, "{\"seq\": %ld, \"event\": \"%s\", \"iteration\": %d", seq++, event, iteration);
    append(begin);
    if (op) append_string("op", op);
    if (blob) append_string("blob", blob);
    if (worker >= 0) {
        snprintf(name, sizeof name, "w%d", worker);
        append_string("worker", name);
    }
    append("}\n");
    pthread_mutex_unlock(&lock);
}

bool write_trace(const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) return refuse("%s: cannot be written", path);
    pthread_mutex_lock(&lock);
    bool good = fwrite(text, 1, length, file) == length;
    good = fprintf(file, "{\"seq\": %ld, \"event\": \"stop\"}\n", seq) > 0 && good;
    pthread_mutex_unlock(&lock);
    good = fclose(file) == 0 && good;
    return good || refuse("%s: cannot be written", path);
}
