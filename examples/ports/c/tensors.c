/* Tensors, and their files: .npy, version 1.0, little-endian, C order. This port runs on little-endian machines. */
#include "port.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *DESCRIPTIONS[] = {"<f4", "<f8", "<i8"};
static const size_t BYTES[] = {4, 8, 8};

_Thread_local char problem[512];

bool refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(problem, sizeof problem, format, values);
    va_end(values);
    return false;
}

long product(const long *shape, int from, int to) {
    long result = 1;
    for (int axis = from; axis < to; axis++) result *= shape[axis];
    return result;
}

Cell *new_cells(long size) {
    Cell *cells = calloc(size > 0 ? (size_t)size : 1, sizeof *cells);
    if (cells == NULL) {
        fprintf(stderr, "no memory for %ld elements\n", size);
        abort();
    }
    return cells;
}

void store(Tensor *tensor, long at, double value) {
    tensor->cells[at].real = tensor->dtype == FLOAT32 ? (double)(float)value : value;
}

/* The header that a file of this tensor must have, padded so that the elements begin at a multiple of 64. */
static int make_header(const Tensor *tensor, char header[512]) {
    int length = sprintf(header, "{'descr': '%s', 'fortran_order': False, 'shape': (", DESCRIPTIONS[tensor->dtype]);
    for (int axis = 0; axis < tensor->axes; axis++) {
        const char *after = axis + 1 < tensor->axes ? ", " : tensor->axes == 1 ? "," : "";
        length += sprintf(header + length, "%ld%s", tensor->shape[axis], after);
    }
    length += sprintf(header + length, "), }");
    while ((10 + length + 1) % 64) header[length++] = ' ';
    header[length++] = '\n';
    return length;
}

/* Whether a header says what it must: the two are compared without their spaces. */
static bool same_header(const char *a, int a_length, const char *b, int b_length) {
    for (int i = 0, j = 0;; i++, j++) {
        while (i < a_length && (a[i] == ' ' || a[i] == '\n')) i++;
        while (j < b_length && (b[j] == ' ' || b[j] == '\n')) j++;
        if (i >= a_length || j >= b_length) return i >= a_length && j >= b_length;
        if (a[i] != b[j]) return false;
    }
}

static bool read_body(FILE *file, const char *path, Tensor *tensor) {
    size_t bytes = BYTES[tensor->dtype];
    for (long i = 0; i < tensor->size; i++) {
        Cell cell = {0};
        float single;
        if (fread(tensor->dtype == FLOAT32 ? (void *)&single : (void *)&cell, bytes, 1, file) != 1)
            return refuse("%s: too short", path);
        if (tensor->dtype == FLOAT32) cell.real = single;
        tensor->cells[i] = cell;
    }
    return fgetc(file) == EOF || refuse("%s: too long", path);
}

bool read_npy(const char *path, Tensor *tensor) {
    unsigned char magic[10];
    char header[65536], expected[512];
    FILE *file = fopen(path, "rb");
    if (file == NULL) return refuse("%s: cannot be opened", path);
    bool good = fread(magic, 10, 1, file) == 1 && memcmp(magic, "\x93NUMPY\x01\x00", 8) == 0;
    int length = good ? magic[8] | magic[9] << 8 : 0;
    good = good && fread(header, 1, (size_t)length, file) == (size_t)length;
    if (!good)
        refuse("%s: not an array of version 1.0", path);
    else if (!same_header(header, length, expected, make_header(tensor, expected)))
        good = refuse("%s: of another shape or dtype than the case says", path);
    else
        good = read_body(file, path, tensor);
    fclose(file);
    return good;
}

bool write_npy(const char *path, const Tensor *tensor) {
    char header[512];
    int length = make_header(tensor, header);
    FILE *file = fopen(path, "wb");
    if (file == NULL) return refuse("%s: cannot be written", path);
    const unsigned char size[2] = {length & 255, length >> 8};
    bool good = fwrite("\x93NUMPY\x01\x00", 8, 1, file) == 1 && fwrite(size, 2, 1, file) == 1 &&
                fwrite(header, (size_t)length, 1, file) == 1;
    for (long i = 0; good && i < tensor->size; i++) {
        float single = (float)tensor->cells[i].real;
        const void *element = tensor->dtype == FLOAT32 ? (const void *)&single : (const void *)&tensor->cells[i];
        good = fwrite(element, BYTES[tensor->dtype], 1, file) == 1;
    }
    good = fclose(file) == 0 && good;
    return good || refuse("%s: cannot be written", path);
}
