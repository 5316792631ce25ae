/* Shifts the clock of a program by SHIFT seconds, with JUMP in every other second only; that of the file system stays, like
   the clock of a file server. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *at) {
    const char *shift = getenv("SHIFT");
    struct timespec now;
    int failed = syscall(SYS_clock_gettime, id, at);
    if (failed || id != CLOCK_REALTIME || !shift) return failed;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    if (!getenv("JUMP") || now.tv_sec % 2) at->tv_sec += atol(shift);
    return 0;
}
