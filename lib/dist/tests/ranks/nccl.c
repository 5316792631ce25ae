// NCCL without a GPU: the functions that mpi/nccl calls, on the streams of the fake driver (lib/tensor/tests/driver).
// Ranks exchange tensors through files in a folder that the id of the communicator names.
//
// The communicator is nonblocking, and as lazy as the real one may be: an operation is enqueued only after some polls of
// its state. Operations that differ between ranks, and calls of several threads at once, are errors. Each operation that
// is enqueued is a line in the log of the driver.
//
// NCCL_FAULT_RANK is the rank to which a fault happens: NCCL_FAIL=N gives it an error instead of operation N, and
// NCCL_HANG=N makes that operation wait for ever.

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { UINT8 = 1, FLOAT = 7, DOUBLE = 8, BF16 = 9 };

typedef struct { char internal[128]; } unique_id;
typedef struct { int kind, type, root; size_t count; } header;
typedef struct {
    header head;
    const void* from;
    void* to;
    void* stream;
    long number;
    int written, done;
} operation;
typedef struct { size_t size; unsigned magic, version; int blocking; } config;

// One communicator per process.
static struct { int rank, size; char folder[128]; } comm;
static operation* pending[4096];
static int pending_count, polls, in_group, state = SUCCESS;
static atomic_int inside;
static long submitted;

// A function of the fake driver, which the process has loaded for itself.
static void* driver(const char* name) {
    void* library = dlopen("libcuda.so", RTLD_NOW);
    void* found = library ? dlsym(library, name) : NULL;
    if (!found) abort();
    return found;
}

static void log_line(const char* line) {
    char text[256];
    snprintf(text, sizeof text, "rank %d: %s", comm.rank, line);
    ((void (*)(const char*))driver("fake_log"))(text);
}

static void enter(void) {
    if (atomic_fetch_add(&inside, 1)) {
        fprintf(stderr, "two threads call NCCL at once\n");
        abort();
    }
    usleep(20);
}
static void leave(void) { atomic_fetch_sub(&inside, 1); }

static long fault(const char* name) {
    const char *rank = getenv("NCCL_FAULT_RANK"), *number = getenv(name);
    return rank && number && atoi(rank) == comm.rank ? atol(number) : -1;
}

static size_t width(int type) { return type == UINT8 ? 1 : type == BF16 ? 2 : type == FLOAT ? 4 : 8; }

static void name_of(char* name, long number, int rank, const char* end) {
    snprintf(name, 256, "%s/%ld.%d%s", comm.folder, number, rank, end);
}

static float of_bf16(unsigned short x) {
    unsigned bits = (unsigned)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static unsigned short to_bf16(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void add(int type, void* to, const void* from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (type == FLOAT) ((float*)to)[i] += ((const float*)from)[i];
        if (type == DOUBLE) ((double*)to)[i] += ((const double*)from)[i];
        if (type == BF16) {
            unsigned short* x = (unsigned short*)to + i;
            *x = to_bf16(of_bf16(*x) + of_bf16(((const unsigned short*)from)[i]));
        }
    }
}

// What the driver calls until the operation is done: all ranks have arrived at it in their streams.
static int poll_operation(void* data) {
    operation* o = data;
    char name[256], temporary[256];
    size_t bytes = o->head.count * width(o->head.type);
    if (o->done) return 1;
    if (o->number == fault("NCCL_HANG")) return 0;
    if (!o->written) {
        name_of(temporary, o->number, comm.rank, ".new");
        name_of(name, o->number, comm.rank, "");
        FILE* file = fopen(temporary, "wb");
        if (!file) abort();
        fwrite(&o->head, sizeof o->head, 1, file);
        fwrite(o->from, 1, bytes, file);
        if (fclose(file) || rename(temporary, name)) abort();
        o->written = 1;
    }
    for (int rank = 0; rank < comm.size; rank++) {
        name_of(name, o->number, rank, "");
        if (access(name, F_OK)) return 0;
    }
    char *sum = calloc(1, bytes + 1), *other = malloc(bytes + 1);
    for (int rank = 0; rank < comm.size; rank++) {
        header head;
        name_of(name, o->number, rank, "");
        FILE* file = fopen(name, "rb");
        if (!file || fread(&head, sizeof head, 1, file) != 1) abort();
        if (memcmp(&head, &o->head, sizeof head)) {
            state = INVALID_USAGE;
        } else if (fread(other, 1, bytes, file) == bytes) {
            if (o->head.kind != 'b') add(o->head.type, sum, other, o->head.count);
            else if (rank == o->head.root) memcpy(sum, other, bytes);
        }
        fclose(file);
    }
    // The memory of a rank that does not get the sum is undefined.
    if (o->head.kind == 'r' && o->head.root != comm.rank) memset(o->to, 0xff, bytes);
    else memcpy(o->to, sum, bytes);
    free(sum);
    free(other);
    o->done = 1;
    return 1;
}

static void enqueue_all(void) {
    void (*enqueue)(void*, int (*)(void*), void*) =
        (void (*)(void*, int (*)(void*), void*))driver("fake_poll");
    for (int i = 0; i < pending_count; i++) {
        char line[100];
        operation* o = pending[i];
        const char* name = o->head.kind == 'a' ? "all-reduce" : o->head.kind == 'r' ? "reduce" : "broadcast";
        if (o->number == fault("NCCL_FAIL")) { state = REMOTE_ERROR; break; }
        snprintf(line, sizeof line, "%s %zu", name, o->head.count);
        log_line(line);
        enqueue(o->stream, poll_operation, o);
    }
    pending_count = 0;
}

static int give(header head, const void* from, void* to, void* stream) {
    enter();
    operation* o = calloc(1, sizeof *o);
    // Also its padding, because headers are compared.
    memset(&o->head, 0, sizeof o->head);
    o->head.kind = head.kind, o->head.type = head.type, o->head.root = head.root, o->head.count = head.count;
    o->from = from, o->to = to, o->stream = stream, o->number = submitted++;
    pending[pending_count++] = o;
    polls = 3;
    leave();
    return in_group ? SUCCESS : IN_PROGRESS;
}

int ncclGetUniqueId(unique_id* id) {
    snprintf(id->internal, sizeof id->internal, "%s/nccl.%d", getenv("NCCL_FOLDER"), getpid());
    char command[256];
    snprintf(command, sizeof command, "mkdir -p %s", id->internal);
    return system(command) ? INVALID_ARGUMENT : SUCCESS;
}
int ncclCommInitRankConfig(void** made, int size, unique_id id, int rank, const config* given) {
    if (given->magic != 0xcafebeef || given->blocking != 0) return INVALID_ARGUMENT;
    comm.rank = rank, comm.size = size, polls = 5;
    memcpy(comm.folder, id.internal, sizeof comm.folder);
    *made = &comm;
    return IN_PROGRESS;
}
int ncclCommGetAsyncError(void* handle, int* result) {
    (void)handle;
    enter();
    if (polls && !--polls) enqueue_all();
    *result = state ? state : polls ? IN_PROGRESS : SUCCESS;
    leave();
    return SUCCESS;
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* handle, void* stream) {
    (void)handle;
    return op ? INVALID_ARGUMENT : give((header){ 'a', type, 0, count }, from, to, stream);
}
int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root, void* handle, void* stream) {
    (void)handle;
    return op ? INVALID_ARGUMENT : give((header){ 'r', type, root, count }, from, to, stream);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* handle, void* stream) {
    (void)handle;
    return give((header){ 'b', type, root, count }, from, to, stream);
}
int ncclGroupStart(void) { in_group++; return SUCCESS; }
int ncclGroupEnd(void) { in_group--; return IN_PROGRESS; }
const char* ncclGetErrorString(int error) {
    return error == REMOTE_ERROR ? "remote process exited or there was a network error"
        : error == INVALID_USAGE ? "invalid usage" : "another error";
}
const char* ncclGetLastError(void* handle) { (void)handle; return "(the last error)"; }
