// A CUDA driver without a GPU: the functions that kernel/cuda calls, with streams whose work executes at any time that
// their order allows, in an order drawn from DRIVER_SEED.
//
// Device memory is host memory. Kernels are some functions of this file, found by name. Missing synchronization by
// events or waits eventually causes wrong results: for example, a copy reads pinned memory when it executes, not when
// it is enqueued. DRIVER_DEVICES, DRIVER_VERSION and DRIVER_MEMORY describe the machine.
//
// Other libraries enqueue work of theirs with fake_poll, which is executed when it says that it is done. DRIVER_LOG names
// a file to which fake_log appends lines; every launch of a graph is one.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900 };

typedef unsigned long long address;
typedef struct stream stream;
typedef struct { stream* stream; long position; } event;
typedef struct { enum { ADD, FAULT, NOTHING, HANG, WRITE_MAP, TO_BF16, FROM_BF16 } does; unsigned granted; } function;
typedef struct {
    enum { COPY, SET, KERNEL, WAIT, POLL } kind;
    void *to, *from;
    size_t bytes;
    function* kernel;
    float* x;
    int n;
    float value;
    event until;
    int (*poll)(void*);
} work;
typedef struct { work list[256]; long count; } graph;
struct stream { work queue[65536]; long given, done; graph* capture; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static stream* streams[16];
static int stream_count, sticky, dummy_context;
static size_t used;
static __thread void* current;

#define ENTER                                   \
    pthread_mutex_lock(&lock);                  \
    int result = current ? sticky : INVALID_CONTEXT; \
    if (result) goto end;
#define LEAVE                    \
    end:                         \
    pthread_mutex_unlock(&lock); \
    return result;

static long number(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

static unsigned draw(unsigned below) {
    static unsigned long long state;
    if (!state) state = 2 * (unsigned long long)number("DRIVER_SEED", 1) + 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % below;
}

static int ready(const stream* s) {
    const work* w = &s->queue[s->done % 65536];
    if (s->done == s->given || (w->kind == KERNEL && w->kernel->does == HANG)) return 0;
    if (w->kind == POLL) return w->poll(w->from);
    return w->kind != WAIT || !w->until.stream || w->until.stream->done >= w->until.position;
}

void fake_log(const char* line) {
    const char* name = getenv("DRIVER_LOG");
    FILE* file = name ? fopen(name, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", line);
    fclose(file);
}

static void round_to_bf16(unsigned short* to, const float* from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned bits;
        memcpy(&bits, from + i, 4);
        to[i] = (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

static void widen_bf16(float* to, const unsigned short* from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned bits = (unsigned)from[i] << 16;
        memcpy(to + i, &bits, 4);
    }
}

// Executes one piece of work of a randomly chosen stream that has work ready.
static void step(void) {
    for (int tries = 0; tries < 1000; tries++) {
        stream* s = streams[draw((unsigned)stream_count)];
        if (!ready(s)) continue;
        work* w = &s->queue[s->done % 65536];
        if (w->kind == COPY) memcpy(w->to, w->from, w->bytes);
        if (w->kind == SET) memset(w->to, (int)w->value, w->bytes);
        if (w->kind == KERNEL && w->kernel->does == FAULT) sticky = ILLEGAL_ADDRESS;
        if (w->kind == KERNEL && w->kernel->does == ADD)
            for (int i = 0; i < w->n; i++) w->x[i] += w->value;
        if (w->kind == KERNEL && w->kernel->does == TO_BF16) round_to_bf16(w->to, w->from, w->bytes);
        if (w->kind == KERNEL && w->kernel->does == FROM_BF16) widen_bf16(w->to, w->from, w->bytes);
        s->done++;
        return;
    }
    for (int i = 0; i < stream_count; i++) {
        const stream* s = streams[i];
        if (s->done == s->given || s->queue[s->done % 65536].kind != POLL) continue;
        // It waits for another process.
        pthread_mutex_unlock(&lock);
        usleep(200);
        pthread_mutex_lock(&lock);
        return;
    }
    abort(); // Streams that wait for each other.
}

static void run_until(stream* s, long position) {
    while (s && s->done < position) step();
}

static void give(stream* s, work w) {
    if (s->capture) {
        s->capture->list[s->capture->count++] = w;
        return;
    }
    if (s->given - s->done >= 65536) run_until(s, s->done + 1);
    s->queue[s->given++ % 65536] = w;
    if (draw(2)) {
        for (unsigned n = draw(4); n > 0; n--) {
            for (int i = 0; i < stream_count; i++)
                if (ready(streams[i])) { step(); break; }
        }
    }
}

int cuInit(unsigned flags) { (void)flags; return number("DRIVER_DEVICES", 1) ? SUCCESS : NO_DEVICE; }
int cuDriverGetVersion(int* version) { *version = (int)number("DRIVER_VERSION", 12040); return 0; }
int cuDeviceGetCount(int* count) { *count = (int)number("DRIVER_DEVICES", 1); return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int n, int device) {
    (void)device;
    strncpy(name, "Fake H100", (size_t)n);
    return 0;
}
int cuDeviceGetAttribute(int* value, int which, int device) {
    (void)device;
    *value = which == 75 ? (int)number("DRIVER_MAJOR", 9) : which == 76 ? 0 : which == 16 ? 132 : 232448;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    (void)device;
    *context = &dummy_context;
    return 0;
}
int cuCtxSetCurrent(void* context) { current = context; return 0; }
int cuGetErrorName(int error, const char** text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == ILLEGAL_ADDRESS
        ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == ILLEGAL_ADDRESS
        ? "an illegal memory access was encountered" : "another error";
    return 0;
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    ENTER
    *total = (size_t)number("DRIVER_MEMORY", 1l << 30);
    *free_bytes = *total - used;
    LEAVE
}
int cuMemAlloc_v2(address* at, size_t bytes) {
    ENTER
    if (used + bytes > (size_t)number("DRIVER_MEMORY", 1l << 30)) { result = OUT_OF_MEMORY; goto end; }
    used += bytes;
    void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(memory, 0xff, bytes);
    *at = (address)memory;
    LEAVE
}
int cuMemFree_v2(address at) {
    ENTER
    for (int i = 0; i < stream_count; i++) run_until(streams[i], streams[i]->given);
    free((void*)at);
    LEAVE
}
int cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER
    *at = malloc(bytes);
    LEAVE
}
int cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
    if (lowest) *lowest = 0;
    *highest = -5;
    return 0;
}
int cuStreamCreateWithPriority(stream** made, unsigned flags, int priority) {
    ENTER
    if (flags != 1 || stream_count == 16 || (priority != 0 && priority != -5)) { result = INVALID_VALUE; goto end; }
    *made = streams[stream_count++] = calloc(1, sizeof(stream));
    LEAVE
}
int cuStreamSynchronize(stream* s) {
    ENTER
    if (s->capture) { result = CAPTURE_UNSUPPORTED; goto end; }
    run_until(s, s->given);
    result = sticky;
    LEAVE
}
int cuStreamWaitEvent(stream* s, event* e, unsigned flags) {
    (void)flags;
    ENTER
    give(s, (work){ .kind = WAIT, .until = *e });
    LEAVE
}
int cuEventCreate(event** made, unsigned flags) {
    (void)flags;
    ENTER
    *made = calloc(1, sizeof(event));
    LEAVE
}
int cuEventRecord(event* e, stream* s) {
    ENTER
    *e = (event){ s, s->given };
    LEAVE
}
int cuEventQuery(event* e) {
    ENTER
    for (int i = 0; i < stream_count; i++)
        if (draw(3) && ready(streams[i])) { step(); break; }
    result = sticky ? sticky : e->stream && e->stream->done < e->position ? NOT_READY : SUCCESS;
    LEAVE
}
int cuEventDestroy_v2(event* e) { free(e); return 0; }
void fake_poll(stream* s, int (*poll)(void*), void* data) {
    pthread_mutex_lock(&lock);
    give(s, (work){ .kind = POLL, .poll = poll, .from = data });
    pthread_mutex_unlock(&lock);
}
int cuEventSynchronize(event* e) {
    ENTER
    run_until(e->stream, e->position);
    result = sticky;
    LEAVE
}
static int copy(void* to, void* from, size_t bytes, stream* s) {
    ENTER
    give(s, (work){ .kind = COPY, .to = to, .from = from, .bytes = bytes });
    LEAVE
}
int cuMemcpyHtoDAsync_v2(address to, void* from, size_t n, stream* s) { return copy((void*)to, from, n, s); }
int cuMemcpyDtoHAsync_v2(void* to, address from, size_t n, stream* s) { return copy(to, (void*)from, n, s); }
int cuMemcpyDtoDAsync_v2(address to, address from, size_t n, stream* s) {
    return copy((void*)to, (void*)from, n, s);
}
int cuMemsetD8Async(address to, unsigned char value, size_t n, stream* s) {
    ENTER
    give(s, (work){ .kind = SET, .to = (void*)to, .value = value, .bytes = n });
    LEAVE
}

int cuModuleLoadData(void** module, const char* image) {
    ENTER
    *module = &dummy_context;
    if (memcmp(image, "\177ELF", 4)) result = INVALID_VALUE;
    LEAVE
}
int cuModuleGetFunction(function** found, void* module, const char* name) {
    (void)module;
    ENTER
    function* f = calloc(1, sizeof(function));
    f->granted = (48 << 10) - 1024;
    if (!strcmp(name, "fake_add")) f->does = ADD;
    else if (!strcmp(name, "fake_fault")) f->does = FAULT;
    else if (!strcmp(name, "fake_nothing")) f->does = NOTHING;
    else if (!strcmp(name, "fake_hang")) f->does = HANG;
    else if (!strcmp(name, "fake_write_map")) f->does = WRITE_MAP;
    else if (!strcmp(name, "cast_from_f32")) f->does = TO_BF16;
    else if (!strcmp(name, "cast_to_f32")) f->does = FROM_BF16;
    else result = NOT_FOUND;
    *found = f;
    LEAVE
}
int cuFuncGetAttribute(int* value, int which, function* f) {
    (void)f;
    *value = which == 1 ? 1024 : -1;
    return 0;
}
int cuFuncSetAttribute(function* f, int which, int value) {
    ENTER
    if (which != 8 || value + 1024 > 232448) result = INVALID_VALUE;
    else f->granted = (unsigned)value;
    LEAVE
}
// Refuses what CUDA's reference manual forbids. The map holds type, address, extents, strides and box.
int cuTensorMapEncodeTiled(address* map, int type, unsigned rank, void* start, const address* extents,
                           const address* strides, const unsigned* box, const unsigned* steps, int interleave,
                           int swizzle, int promotion, int fill) {
    (void)promotion;
    const unsigned size = type == 6 || type == 9 ? 2 : 4;
    int bad = (size_t)map % 64 || rank != 4 || (size_t)start % 16 || interleave || fill || swizzle != 3 ||
              box[0] * size > 128 || box[0] * size % 16;
    for (unsigned i = 0; i < rank && !bad; i++) {
        bad = !extents[i] || extents[i] > 1ull << 32 || !box[i] || box[i] > 256 || steps[i] != 1 ||
              (i > 0 && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40 || strides[i - 1] < extents[i - 1]));
    }
    if (bad) return INVALID_VALUE;
    map[0] = (address)type, map[1] = (address)start;
    memcpy(map + 2, extents, 32);
    memcpy(map + 6, strides, 24);
    for (int i = 0; i < 4; i++) map[9 + i] = box[i];
    return 0;
}
int cuLaunchKernel(function* f, unsigned x, unsigned y, unsigned z, unsigned p, unsigned q, unsigned r,
                   unsigned shared, stream* s, void** args, void** extra) {
    (void)extra;
    ENTER
    if (!x || !y || !z || p * q * r > 1024 || shared > f->granted) { result = INVALID_VALUE; goto end; }
    if (f->does == WRITE_MAP) {
        void* map = malloc(128);
        memcpy(map, args[0], 128);
        give(s, (work){ .kind = COPY, .from = map, .to = *(void**)args[1], .bytes = 128 });
    } else if (f->does >= TO_BF16)
        give(s, (work){ .kind = KERNEL, .kernel = f, .from = *(void**)args[0], .to = *(void**)args[1],
                        .bytes = *(size_t*)args[2] });
    else
        give(s, (work){ .kind = KERNEL, .kernel = f, .x = *(float**)args[0], .n = *(int*)args[1],
                        .value = *(float*)args[2] });
    LEAVE
}

int cuStreamBeginCapture_v2(stream* s, int mode) {
    ENTER
    if (mode != 2 || s->capture) { result = INVALID_VALUE; goto end; }
    s->capture = calloc(1, sizeof(graph));
    LEAVE
}
int cuStreamEndCapture(stream* s, graph** made) {
    ENTER
    *made = s->capture;
    s->capture = NULL;
    LEAVE
}
int cuGraphInstantiateWithFlags(graph** made, graph* g, unsigned long long flags) {
    (void)flags;
    ENTER
    *made = malloc(sizeof(graph));
    **made = *g;
    LEAVE
}
int cuGraphDestroy(graph* g) { free(g); return 0; }
int cuGraphExecDestroy(graph* g) { free(g); return 0; }
int cuGraphLaunch(graph* g, stream* s) {
    ENTER
    fake_log("graph");
    for (long i = 0; i < g->count; i++) give(s, g->list[i]);
    LEAVE
}
