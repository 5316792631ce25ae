// Stack switching: callee-saved registers are pushed; all others are lost.
//
// void* emulator_switch(void** save, void* load)

#if defined(__x86_64__) && defined(__ELF__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch, .-emulator_switch
.section .note.GNU-stack,"",@progbits
.text
)");
#elif defined(__aarch64__) && defined(__ELF__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, %function
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulator_switch, .-emulator_switch
.section .note.GNU-stack,"",%progbits
.text
)");
#else
#error "the emulator runs on x86-64 and aarch64 with ELF only"
#endif

#include <cstddef>
#include <cstdint>

// Prepares a new stack for emulator_switch, which will return to `entry`.
extern "C" void* emulator_new_stack(void* top, void (*entry)()) {
    uintptr_t* words = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(top) & ~15ull);
#if defined(__x86_64__)
    // The stack pointer is 8 below a multiple of 16, as after a call.
    words -= 2;
    words[0] = reinterpret_cast<uintptr_t>(entry);
    words[1] = 0;
    words -= 6;
    for (int i = 0; i < 6; i++) {
        words[i] = 0;
    }
#else
    words -= 20;
    for (int i = 0; i < 20; i++) {
        words[i] = 0;
    }
    words[11] = reinterpret_cast<uintptr_t>(entry);
#endif
    return words;
}
