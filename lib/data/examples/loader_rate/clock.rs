//! The clocks that rates can be measured with.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Wall-clock time.
    Wall,
    /// CPU time of the calling thread, for a machine that is shared with others.
    Cpu,
}

impl Clock {
    /// The current time in seconds.
    pub fn now(self) -> f64 {
        let now = clock_gettime(match self {
            Self::Wall => ClockId::Monotonic,
            Self::Cpu => ClockId::ThreadCPUTime,
        });
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    }
}

impl FromStr for Clock {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Wall, Self::Cpu].into_iter();
        let found = all.clone().find(|clock| clock.to_string() == text);
        found.ok_or_else(|| format!("no clock `{text}`; there are wall and cpu"))
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Wall { "wall" } else { "cpu" })
    }
}
