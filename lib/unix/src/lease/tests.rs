use super::*;
use std::fs::File;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

const BEAT: Duration = Duration::from_millis(40);

/// A process of another machine, of which nothing is known but its heartbeat.
fn stranger(n: u32) -> Owner {
    Owner {
        pid: n,
        machine: Some(format!("machine {n}")),
        host: format!("node{n}"),
        heartbeat: BEAT.as_secs_f64(),
        job: None,
        ..Owner::this_process()
    }
}

fn take(owner: Owner, folder: &Path) -> Result<Lease> {
    Lease::take_as(owner, folder, || Ok(1), &|| false)
}

/// An owner that died without a word.
fn kill(mut lease: Lease) {
    let (stop, heart) = lease.heart.take().unwrap();
    drop(stop);
    heart.join().unwrap();
    std::mem::forget(lease);
}

fn set_time(lease: &Lease, time: SystemTime) {
    File::options().write(true).open(&lease.path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_fresh_lease_names_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let owner = Owner { job: Some("120_4".into()), ..stranger(1) };
    let first = Lease::take_as(owner, folder.path(), || Ok(7), &|| false).unwrap();
    assert_eq!(first.attempt(), 7);
    let error = take(stranger(2), folder.path()).unwrap_err();
    assert_eq!(error.exit, Exit::Again);
    for part in ["attempt 7", "job 120_4", "node1", "process 1", "0 s ago"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    first.fence().look().unwrap();
    drop(first);
    let next = take(stranger(2), folder.path()).unwrap();
    assert_eq!(next.attempt(), 8, "given back: no wait, and the next number");
    let left = numbers(folder.path()).unwrap();
    assert_eq!(left, [8], "older ones are removed");
}

#[test]
fn a_process_of_this_machine_that_is_gone_is_followed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let gone = Owner { pid: child.id(), ..Owner::this_process() };
    child.wait().unwrap();
    kill(take(gone, folder.path()).unwrap());
    let started = Instant::now();
    assert_eq!(take(Owner::this_process(), folder.path()).unwrap().attempt(), 2);
    assert!(started.elapsed() < Duration::from_secs(5), "no heartbeat was waited for");
}

/// R26: the older owner is only slow; it writes nothing once it is followed.
#[test]
fn r26_an_owner_that_stands_still_is_followed_and_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let mut slow = take(stranger(1), folder.path()).unwrap();
    let (stop, heart) = slow.heart.take().unwrap();
    drop(stop);
    heart.join().unwrap();
    assert!(take(stranger(2), folder.path()).is_err(), "its last heartbeat is fresh");
    std::thread::sleep(BEAT * 10);
    slow.fence().look().unwrap();
    let next = take(stranger(2), folder.path()).unwrap();
    assert_eq!(next.attempt(), 2);
    std::thread::sleep(BEAT);
    let error = slow.fence().check().unwrap_err();
    assert_eq!(error.exit, Exit::Again);
    for part in ["attempt 1 stops", "attempt 2", "node2"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    drop(slow);
    next.fence().look().unwrap();
}

/// The clock of the file system jumps: an owner that lives keeps its lease, one that is dead loses it.
#[test]
fn clocks_that_jump_mislead_nobody() {
    let hour = Duration::from_secs(3600);
    for time in [SystemTime::now() - hour, SystemTime::now() + hour] {
        let folder = tempfile::tempdir().unwrap();
        let alive = take(stranger(1), folder.path()).unwrap();
        set_time(&alive, time);
        let error = take(stranger(2), folder.path()).unwrap_err();
        assert_eq!(error.exit, Exit::Again, "{error}");
        alive.fence().look().unwrap();
        let path = alive.path.clone();
        kill(alive);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        assert_eq!(take(stranger(2), folder.path()).unwrap().attempt(), 2);
    }
}

/// R26: fifty at once, after an owner of another machine that is dead, and with none before.
#[test]
fn r26_of_fifty_starts_at_once_one_has_the_lease() {
    for with_dead in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        if with_dead {
            kill(take(stranger(99), folder.path()).unwrap());
            std::thread::sleep(BEAT * 10);
        }
        let gate = Barrier::new(50);
        let writers = AtomicBool::new(false);
        let winners: usize = std::thread::scope(|scope| {
            let start = |n: u32| {
                let (gate, writers, folder) = (&gate, &writers, folder.path());
                scope.spawn(move || {
                    gate.wait();
                    let lease = match take(stranger(n), folder) {
                        Ok(lease) => lease,
                        Err(error) => {
                            assert_eq!(error.exit, Exit::Again, "{error}");
                            return 0;
                        }
                    };
                    assert!(!writers.swap(true, Ordering::SeqCst), "two writers");
                    std::thread::sleep(BEAT * 20);
                    lease.fence().look().unwrap();
                    writers.store(false, Ordering::SeqCst);
                    1
                })
            };
            let threads: Vec<_> = (0..50).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(winners >= 1);
        assert_eq!(numbers(folder.path()).unwrap().len(), 1);
        let names = std::fs::read_dir(folder.path()).unwrap();
        let left = names.filter(|entry| {
            entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".tmp-")
        });
        assert_eq!(left.count(), 0);
    }
}

/// A name below the highest number is free again when its owner has been removed; it is worth nothing.
#[test]
fn a_slow_candidate_does_not_take_an_old_number() {
    let folder = tempfile::tempdir().unwrap();
    let holder = Lease::take_as(stranger(1), folder.path(), || Ok(5), &|| false).unwrap();
    // What a candidate that looked before the holder came would do.
    let slow = Candidate::new(folder.path(), &stranger(2)).unwrap();
    assert!(slow.take(&path_of(folder.path(), 4)).unwrap());
    assert_eq!(newest(folder.path()).unwrap(), Some(5), "so it sees that it came too late");
    holder.fence().look().unwrap();
    assert!(!slow.take(&path_of(folder.path(), 5)).unwrap());
}

#[test]
fn a_damaged_lease_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(path_of(folder.path(), 3), "").unwrap();
    let owner = Owner { ..stranger(2) };
    let error = take(owner.clone(), folder.path()).unwrap_err();
    assert!(error.to_string().contains("attempt 3, last sign of life"), "{error}");
    std::thread::sleep(BEAT * 10);
    assert_eq!(take(owner, folder.path()).unwrap().attempt(), 4);
}

#[test]
fn the_same_job_started_again_need_not_wait_for_the_heartbeat_to_grow_old() {
    let folder = tempfile::tempdir().unwrap();
    let job = |restarts, n| Owner { job: Some("7".into()), restarts, ..stranger(n) };
    let before = take(job(0, 1), folder.path()).unwrap();
    assert!(take(job(1, 2), folder.path()).is_err(), "it lives, whatever SLURM says");
    kill(before);
    assert_eq!(take(job(1, 2), folder.path()).unwrap().attempt(), 2);
}

#[test]
fn waiting_ends_when_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let owner = Owner { heartbeat: 10.0, ..stranger(1) };
    let lease = take(owner, folder.path()).unwrap();
    set_time(&lease, SystemTime::now() - Duration::from_secs(3600));
    let started = Instant::now();
    let error = Lease::take_as(stranger(2), folder.path(), || Ok(1), &|| true).unwrap_err();
    assert_eq!(error.exit, Exit::Again);
    assert!(started.elapsed() < Duration::from_secs(5), "{error}");
}

#[test]
fn a_lease_that_was_removed_by_hand_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let lease = take(stranger(1), &folder.path().join("lease")).unwrap();
    std::fs::remove_dir_all(folder.path().join("lease")).unwrap();
    let error = lease.fence().look().unwrap_err();
    assert!(error.to_string().contains("was removed"), "{error}");
}
