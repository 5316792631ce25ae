//! Parses the resource report of `ptxas -v`.

/// Resource use of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Name of the kernel.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Stack bytes per thread: arrays that are not in registers, and spills.
    pub stack: u32,
    /// Spill store bytes per thread.
    pub spill_stores: u32,
    /// Spill load bytes per thread.
    pub spill_loads: u32,
    /// Bytes of static shared memory per block.
    pub shared: u32,
}

/// Returns the kernels in a log, sorted by name, and the compiler warnings.
pub(super) fn parse(log: &str) -> (Vec<Resources>, Vec<String>) {
    let mut kernels: Vec<Resources> = Vec::new();
    let mut warnings = Vec::new();
    // Properties of device functions follow in the same format.
    let mut of_kernel = false;
    for line in log.lines() {
        if let Some(rest) = after(line, "Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or(rest).to_string();
            kernels.push(Resources { name, ..Resources::default() });
        } else if let Some(name) = after(line, "Function properties for ") {
            of_kernel = kernels.last().is_some_and(|kernel| kernel.name == name.trim());
        } else if line.contains("warning") || line.contains("Performance Loss") {
            warnings.push(line.trim().to_string());
        } else if let Some(kernel) = kernels.last_mut().filter(|_| of_kernel) {
            let number = |what| before(line, what);
            if let Some(stack) = number(" bytes stack frame") {
                kernel.stack = stack;
                kernel.spill_stores = number(" bytes spill stores").unwrap_or(0);
                kernel.spill_loads = number(" bytes spill loads").unwrap_or(0);
            } else if let Some(registers) = number(" registers") {
                kernel.registers = registers;
                kernel.shared = number(" bytes smem").unwrap_or(0);
            }
        }
    }
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    (kernels, warnings)
}

fn after<'a>(line: &'a str, words: &str) -> Option<&'a str> {
    line.split_once(words).map(|(_, rest)| rest)
}

/// Returns the number that precedes `words` in the line.
fn before(line: &str, words: &str) -> Option<u32> {
    let (head, _) = line.split_once(words)?;
    head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'scale_rows' for 'sm_90a'
ptxas info    : Function properties for scale_rows
ptxas         .     224 bytes stack frame, 396 bytes spill stores, 368 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 224 bytes cumulative stack size
ptxas info    : Compile time = 34.629 ms
ptxas info    : Compiling entry function 'scale_all' for 'sm_90a'
ptxas info    : Function properties for scale_all
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 9 registers, used 1 barriers, 2048 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for _Z6helperf
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas warning : Value of threads per SM is out of range
";

    #[test]
    fn a_log_gives_what_each_kernel_needs() {
        let (kernels, warnings) = parse(LOG);
        let all = Resources {
            name: "scale_all".into(),
            registers: 9,
            shared: 2048,
            ..Resources::default()
        };
        let rows = Resources {
            name: "scale_rows".into(),
            registers: 32,
            stack: 224,
            spill_stores: 396,
            spill_loads: 368,
            shared: 0,
        };
        assert_eq!(kernels, [all, rows]);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }
}
