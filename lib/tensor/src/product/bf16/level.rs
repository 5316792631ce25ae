//! The choice of an implementation.

use std::sync::LazyLock;
use unix::{Error, Result};

/// Implementations of products, in the order in which LONGHAUL_CPU limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The f32 product of rounded operands.
    Portable,
    /// `vdpbf16ps` of AVX-512 BF16.
    Avx512,
    /// `tdpbf16ps` of AMX.
    Amx,
}

impl Level {
    const ALL: [Self; 3] = [Self::Portable, Self::Avx512, Self::Amx];

    /// Its name in LONGHAUL_CPU, messages and env.json.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// Whether the processor has it, and the system allows it.
    pub fn is_there(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        static THERE: LazyLock<[bool; 3]> =
            LazyLock::new(|| [true, super::avx512::is_there(), super::amx::is_there()]);
        #[cfg(not(target_arch = "x86_64"))]
        static THERE: [bool; 3] = [true, false, false];
        THERE[self as usize]
    }

    /// Those of this processor, from the lowest to the highest.
    pub(super) fn all() -> impl DoubleEndedIterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_there())
    }
}

/// The environment variable that limits the choice.
const VARIABLE: &str = "LONGHAUL_CPU";

/// The limit that LONGHAUL_CPU sets. Errors: 2 when it is no level.
fn limit() -> Result<Option<Level>> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let known = Level::ALL.into_iter().find(|level| text == level.name());
    known.map(Some).ok_or_else(|| {
        let text = text.to_string_lossy();
        Error::usage(format!("{VARIABLE}={text}: use portable, avx512 or amx"))
    })
}

/// Whether the processor is one of Intel's.
fn is_of_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let found = std::arch::x86_64::__cpuid(0);
        [found.ebx, found.edx, found.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The implementation for products of this process. With LONGHAUL_CPU, it is the highest one of the processor up to that.
/// Otherwise it is the fastest: AMX, or AVX-512 BF16 but for Intel's processors, which execute `vdpbf16ps` at half the rate of
/// the multiplications and additions of f32 (87 to 96 and 164 to 208 GFLOP/s on a core of family 6, model 207), or the portable
/// one.
/// Errors: 2 when LONGHAUL_CPU is no level.
pub fn level() -> Result<Level> {
    limit().map(choice)
}

fn choice(limit: Option<Level>) -> Level {
    let is_allowed = |level: &Level| match (limit, level) {
        (Some(limit), level) => *level <= limit,
        (None, Level::Avx512) => !is_of_intel(),
        (None, _) => true,
    };
    Level::all().rfind(is_allowed).unwrap_or(Level::Portable)
}

/// [`level`], once for all products; a value of LONGHAUL_CPU that is no level is ignored.
pub(super) fn chosen() -> Level {
    static LEVEL: LazyLock<Level> = LazyLock::new(|| choice(limit().ok().flatten()));
    *LEVEL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_allows_what_is_there_below_it() {
        let highest = Level::all().next_back().unwrap();
        assert_eq!(choice(Some(Level::Portable)), Level::Portable);
        assert_eq!(choice(Some(Level::Amx)), highest);
        assert_eq!(choice(Some(Level::Avx512)), highest.min(Level::Avx512));
        assert!(choice(None) <= highest);
    }
}
