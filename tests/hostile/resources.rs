//! Resource limits are named in the error, with their value and how to raise them.

use super::*;

#[test]
fn errors_name_the_limit_that_caused_them() {
    let copy = copy();
    // A soft limit, so that the advice does not depend on who runs the tests; dash counts blocks of 512.
    for (limit, script, expected) in [
        (
            "ulimit -S -f 32",
            "train-stage codec -c codec.yaml --run new",
            "RLIMIT_FSIZE limits the size of a file to 16.0 KiB",
        ),
        (
            "ulimit -S -f 32",
            "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 256 --frames 20 -o made",
            "RLIMIT_FSIZE limits the size of a file to 16.0 KiB",
        ),
        (
            "ulimit -S -n 8",
            "train-stage codec -c codec.yaml --run new-files",
            "RLIMIT_NOFILE limits the number of open files to 8",
        ),
        (
            "ulimit -S -v 1048576",
            "train-stage codec -c codec.yaml --run new-memory -o model.hidden=65536",
            "RLIMIT_AS limits the address space to 1.0 GiB",
        ),
    ] {
        let seen = shell(copy.path(), &format!("{limit}; {script}"));
        assert!(matches!(seen.status, Some(1 | 73 | 74)), "{script}: {:?}", seen.status);
        let line = seen.stderr.lines().find(|line| line.contains(expected));
        let line = line.unwrap_or_else(|| panic!("{script}: {}", seen.stderr));
        assert!(line.contains("ulimit -") && !line.contains("os error"), "{line}");
    }
}
