//! Facts of the machine: its name, its processor, its threads.

/// Name of the host; `localhost` when the system tells none.
pub fn name() -> String {
    let found = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // It becomes part of file names.
    let name: String =
        found.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

/// Model of the processor as the kernel names it.
pub fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Processors this process may use (affinity and control groups counted).
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
