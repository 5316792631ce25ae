//! The tile registers of AMX, by inline assembly: there are no stable intrinsics for them.

use super::panels::SIDE;
use super::tiles::Tiles;
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};

/// AMX-BF16 and AMX-TILE in register EDX of leaf 7.
const FEATURES: u32 = 1 << 22 | 1 << 24;
/// The states of tile configuration and tile data in XCR0.
const STATES: u64 = 0b11 << 17;
/// `arch_prctl` of Linux: asks for permission to use the state of tile data, number 18.
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
const XFEATURE_XTILEDATA: libc::c_long = 18;

/// Whether the processor has AMX with bf16, and the system lets this process use it: it is asked once, before threads that
/// use it are started or after, because permission is the process's.
pub(super) fn is_there() -> bool {
    if !super::avx512::is_there() || __cpuid_count(7, 0).edx & FEATURES != FEATURES {
        return false;
    }
    // SAFETY: a processor with AVX-512 has XGETBV.
    if unsafe { xcr0() } & STATES != STATES {
        return false;
    }
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: register 0 exists.
    unsafe { _xgetbv(0) }
}

/// The operand of `ldtilecfg`: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};
const _: () = assert!(size_of::<Configuration>() == 64 && SIDE == 16);

/// The registers of this thread, configured; released when dropped, so that the system need not save them any more.
pub(super) struct Registers(());

impl Registers {
    /// # Safety
    /// The processor has AMX, which this process may use.
    pub(super) unsafe fn configured() -> Self {
        // SAFETY: the configuration is valid, and is only read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIGURATION, options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: they were configured.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

// The compiler does not use tile registers, so they keep their values between these statements.
impl Tiles for Registers {
    #[inline(always)]
    unsafe fn clear<const N: u8>(&mut self) {
        // SAFETY: the registers are configured.
        unsafe { asm!("tilezero tmm{n}", n = const N, options(nostack, nomem)) };
    }

    #[inline(always)]
    unsafe fn load<const N: u8>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller guarantees the memory.
        unsafe {
            asm!("tileloadd tmm{n}, [{from} + {stride}*1]", n = const N, from = in(reg) from, stride = in(reg) stride,
                options(nostack, readonly));
        }
    }

    #[inline(always)]
    unsafe fn store<const N: u8>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the caller guarantees the memory.
        unsafe {
            asm!("tilestored [{to} + {stride}*1], tmm{n}", n = const N, to = in(reg) to, stride = in(reg) stride,
                options(nostack));
        }
    }

    #[inline(always)]
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: the registers are configured, and were loaded.
        unsafe {
            asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B, options(nostack, nomem));
        }
    }
}
