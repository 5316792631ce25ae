// Asynchronous copies from global to shared memory (cp.async, sm_80).
//
// Copies since the last commit_async() form a group; wait_async<N>() waits for all groups of this thread except the
// latest N. Other threads see the bytes after a barrier that follows the wait.
#pragma once

#include "element.cuh"

#ifndef EMULATOR
DEVICE unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
#endif

// Copies 16 bytes, bypassing L1; the last 16 - valid_bytes become zero without being read. Both addresses are multiples
// of 16.
DEVICE void copy_async_16(void* to_shared, const void* from_global, int valid_bytes) {
#ifdef EMULATOR
    emulator_copy_async(to_shared, from_global, 16, valid_bytes);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
                 "l"(__cvta_generic_to_global(from_global)), "r"(valid_bytes)
                 : "memory");
#endif
}

// Copies 4 bytes, or writes zero without a read if not `valid`. Both addresses are multiples of 4.
DEVICE void copy_async_4(void* to_shared, const void* from_global, bool valid) {
#ifdef EMULATOR
    emulator_copy_async(to_shared, from_global, 4, valid ? 4 : 0);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to_shared)),
                 "l"(__cvta_generic_to_global(from_global)), "r"(valid ? 4 : 0)
                 : "memory");
#endif
}

DEVICE void commit_async() {
#ifdef EMULATOR
    emulator_commit_async();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N>
DEVICE void wait_async() {
#ifdef EMULATOR
    emulator_wait_async(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
