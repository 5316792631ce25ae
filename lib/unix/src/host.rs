//! Facts about the machine: host name, CPU model and number of threads.

/// Returns the host name; `localhost` if the system has none.
pub fn name() -> String {
    let found = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // The name becomes part of file names, so remove all other characters.
    let name: String =
        found.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

/// Returns the CPU model as reported by the kernel.
pub fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Returns the number of CPUs that this process may use, taking affinity and cgroups into account.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
