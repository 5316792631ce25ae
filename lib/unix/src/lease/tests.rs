use super::*;
use std::fs::File;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

const BEAT: Duration = Duration::from_millis(100);
/// Heartbeat interval in seconds of an owner that must not look dead when this machine delays the test.
const SLOW: f64 = 30.0;

/// A process on another machine, known only by its heartbeat.
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

/// Simulates an owner that was killed without releasing its lease.
fn kill(mut lease: Lease) {
    let (stop, heart) = lease.heart.take().unwrap();
    drop(stop);
    heart.join().unwrap();
    std::mem::forget(lease);
}

/// Like [`stranger`], with a heartbeat that stays fresh for minutes.
fn slow(n: u32) -> Owner {
    Owner { heartbeat: SLOW, ..stranger(n) }
}

fn set_time(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Ages a lease: sets its last heartbeat to an hour ago and its interval to [`BEAT`].
fn grow_old(path: &Path) {
    let owner = files::read_lease(path).unwrap().unwrap().owner;
    if let Some(owner) = owner {
        let quick = Owner { heartbeat: BEAT.as_secs_f64(), ..owner };
        std::fs::write(path, serde_json::to_vec(&quick).unwrap()).unwrap();
    }
    set_time(path, SystemTime::now() - Duration::from_secs(3600));
}

#[test]
fn a_fresh_lease_names_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let owner = Owner { job: Some("120_4".into()), ..slow(1) };
    let first = Lease::take_as(owner, folder.path(), || Ok(7), &|| false).unwrap();
    assert_eq!(first.attempt(), 7);
    let error = take(stranger(2), folder.path()).unwrap_err();
    assert_eq!(error.exit, Exit::Again);
    for part in ["attempt 7", "job 120_4", "node1", "process 1", "last heartbeat"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    first.fence().check_now().unwrap();
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
    // Its heartbeat is fresh, so only the missing process allows a takeover.
    assert_eq!(take(Owner::this_process(), folder.path()).unwrap().attempt(), 2);
}

/// The earlier owner is only slow; it must write nothing once it has been superseded.
#[test]
fn an_owner_that_stands_still_is_followed_and_fenced() {
    let folder = tempfile::tempdir().unwrap();
    let mut slow = take(slow(1), folder.path()).unwrap();
    let (stop, heart) = slow.heart.take().unwrap();
    drop(stop);
    heart.join().unwrap();
    assert!(take(stranger(2), folder.path()).is_err(), "its last heartbeat is fresh");
    grow_old(&slow.path);
    slow.fence().check_now().unwrap();
    let next = take(stranger(2), folder.path()).unwrap();
    assert_eq!(next.attempt(), 2);
    std::thread::sleep(Duration::from_millis(1100)); // a check is trusted for a second
    let error = slow.fence().check().unwrap_err();
    assert_eq!(error.exit, Exit::Again);
    for part in ["attempt 1 stops", "attempt 2", "node2"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    drop(slow);
    next.fence().check_now().unwrap();
}

#[test]
fn log_and_status_of_an_older_owner_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (log, status) = (folder.path().join("log.jsonl"), folder.path().join("status.json"));
    let lease = take(stranger(1), &folder.path().join("lease")).unwrap();
    let mut writer = crate::log::Log::open(&log, 1).unwrap().fenced(lease.fence().clone());
    let mut state = crate::status::StatusWriter::new(status.clone()).fenced(lease.fence().clone());
    let now: crate::status::Status =
        serde_json::from_str(r#"{"task": "codec", "state": "running", "update": 1}"#).unwrap();
    let text = || (std::fs::read(&log).unwrap(), std::fs::read(&status).unwrap());
    writer.write("update", &serde_json::json!({"update": 1})).unwrap();
    state.write(&now).unwrap();
    let before = text();
    std::fs::write(path_of(&folder.path().join("lease"), 2), "").unwrap();
    std::thread::sleep(BEAT); // a check is trusted for a tenth of the interval
    let record = writer.write("update", &serde_json::json!({"update": 2}));
    assert_eq!(record.unwrap_err().exit, Exit::Again);
    assert_eq!(state.write(&now).unwrap_err().exit, Exit::Again);
    assert_eq!(text(), before);
}

/// The clock of the file system jumps: a live owner must keep its lease, and a dead one must lose it.
#[test]
fn clocks_that_jump_mislead_nobody() {
    let hour = Duration::from_secs(3600);
    for time in [SystemTime::now() - hour, SystemTime::now() + hour] {
        let folder = tempfile::tempdir().unwrap();
        // The owner sends one heartbeat per second; the other process waits for three or nine heartbeats.
        let alive = take(Owner { heartbeat: 1.0, ..stranger(1) }, folder.path()).unwrap();
        set_time(&alive.path, time);
        let error = take(stranger(2), folder.path()).unwrap_err();
        assert_eq!(error.exit, Exit::Again, "{error}");
        alive.fence().check_now().unwrap();
        let path = alive.path.clone();
        kill(alive);
        grow_old(&path);
        set_time(&path, time);
        assert_eq!(take(stranger(2), folder.path()).unwrap().attempt(), 2);
    }
}

/// Fifty processes try at the same time, with a dead owner on another machine and without any owner.
#[test]
fn of_fifty_starts_at_once_one_has_the_lease() {
    for with_dead in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        if with_dead {
            let dead = take(slow(99), folder.path()).unwrap();
            let path = dead.path.clone();
            kill(dead);
            grow_old(&path);
        }
        let gate = Barrier::new(50);
        let writers = AtomicBool::new(false);
        let winners: usize = std::thread::scope(|scope| {
            let start = |n: u32| {
                let (gate, writers, folder) = (&gate, &writers, folder.path());
                scope.spawn(move || {
                    gate.wait();
                    let lease = match take(slow(n), folder) {
                        Ok(lease) => lease,
                        Err(error) => {
                            assert_eq!(error.exit, Exit::Again, "{error}");
                            return 0;
                        }
                    };
                    assert!(!writers.swap(true, Ordering::SeqCst), "two writers");
                    std::thread::sleep(BEAT * 12);
                    lease.fence().check_now().unwrap();
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

/// All candidates try to get the same number at the same time.
#[test]
fn a_number_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let candidates: Vec<Candidate> =
        (0..20).map(|n| Candidate::new(folder.path(), &stranger(n)).unwrap()).collect();
    for number in 1..=20 {
        let path = path_of(folder.path(), number);
        let gate = Barrier::new(candidates.len());
        let taken: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = candidates
                .iter()
                .map(|candidate| {
                    scope.spawn(|| {
                        gate.wait();
                        candidate.take(&path).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 1, "number {number}");
        let winner = taken.iter().position(|taken| *taken).unwrap() as u32;
        let owner = files::read_lease(&path).unwrap().unwrap().owner.unwrap();
        assert_eq!(owner.pid, stranger(winner).pid, "and says who");
    }
}

/// A number below the highest one is free again once its file was removed; taking it must have no effect.
#[test]
fn a_slow_candidate_does_not_take_an_old_number() {
    let folder = tempfile::tempdir().unwrap();
    let holder = Lease::take_as(stranger(1), folder.path(), || Ok(5), &|| false).unwrap();
    // Simulates a candidate that read the directory before the holder arrived.
    let slow = Candidate::new(folder.path(), &stranger(2)).unwrap();
    assert!(slow.take(&path_of(folder.path(), 4)).unwrap());
    assert_eq!(newest(folder.path()).unwrap(), Some(5), "so it sees that it came too late");
    holder.fence().check_now().unwrap();
    assert!(!slow.take(&path_of(folder.path(), 5)).unwrap());
}

#[test]
fn a_damaged_lease_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(path_of(folder.path(), 3), "").unwrap();
    let error = take(slow(2), folder.path()).unwrap_err();
    assert!(error.to_string().contains("attempt 3, last heartbeat"), "{error}");
    grow_old(&path_of(folder.path(), 3));
    assert_eq!(take(stranger(2), folder.path()).unwrap().attempt(), 4);
}

#[test]
fn the_same_job_started_again_need_not_wait_for_the_heartbeat_to_grow_old() {
    let folder = tempfile::tempdir().unwrap();
    let job = |restarts, n| Owner { job: Some("7".into()), restarts, ..stranger(n) };
    let before = take(Owner { heartbeat: 1.0, ..job(0, 1) }, folder.path()).unwrap();
    assert!(take(job(1, 2), folder.path()).is_err(), "it lives, whatever SLURM says");
    kill(before);
    assert_eq!(take(job(1, 2), folder.path()).unwrap().attempt(), 2);
}

#[test]
fn release_sets_only_the_mtime_and_works_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let before = take(stranger(1), folder.path()).unwrap();
    let path = before.path.clone();
    kill(before);
    mark_released(&path).unwrap();
    let second = take(stranger(2), folder.path()).unwrap();
    assert_eq!(second.attempt(), 2);
    // Releasing also works if the disk had no space for the owner's data.
    let path = second.path.clone();
    kill(second);
    std::fs::write(&path, "").unwrap();
    mark_released(&path).unwrap();
    let third = Lease::take_as(slow(3), folder.path(), || Ok(1), &|| true);
    assert_eq!(third.expect("it was watched").attempt(), 3);
}

#[test]
fn the_highest_number_has_no_successor() {
    let folder = tempfile::tempdir().unwrap();
    let last = Lease::take_as(stranger(1), folder.path(), || Ok(u64::MAX), &|| false).unwrap();
    drop(last);
    let error = take(stranger(2), folder.path()).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    assert!(error.to_string().contains("attempt-18446744073709551615.json"), "{error}");
}

#[test]
fn a_pipe_a_folder_or_a_link_in_place_of_a_lease_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_of(folder.path(), 1);
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(take(stranger(2), folder.path()).unwrap_err().exit, Exit::NoInput);
    assert_eq!(observe(folder.path()).unwrap_err().exit, Exit::NoInput);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(take(stranger(2), folder.path()).unwrap_err().exit, Exit::NoInput);
    // A link to the lease of another run must not be followed either.
    std::fs::remove_dir(&path).unwrap();
    let other = tempfile::tempdir().unwrap();
    drop(take(stranger(3), other.path()).unwrap());
    let link = folder.path().join("lease");
    std::os::unix::fs::symlink(path_of(other.path(), 1), &path).unwrap();
    std::os::unix::fs::symlink(other.path(), &link).unwrap();
    for folder in [folder.path(), &link] {
        let error = take(stranger(2), folder).unwrap_err();
        assert!(error.to_string().contains("it is a link"), "{error}");
    }
}

/// A copy has the same files with the same content; only the inodes reveal that it is a different run.
#[test]
fn a_run_whose_directory_was_replaced_by_a_copy_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (run, away) = (folder.path().join("run"), folder.path().join("away"));
    let lease = take(slow(1), &run.join("lease")).unwrap();
    std::fs::rename(&run, &away).unwrap();
    std::fs::rename(&away, &run).unwrap();
    lease.fence().check_now().unwrap(); // moved away and back
    let copied = std::process::Command::new("cp").arg("-a").args([&run, &away]).status();
    assert!(copied.unwrap().success());
    std::fs::rename(&run, folder.path().join("older")).unwrap();
    std::fs::rename(&away, &run).unwrap();
    let error = lease.fence().check_now().unwrap_err();
    assert!(error.to_string().contains("removed or replaced"), "{error}");
    assert!(lease.fence().is_gone());
    let before = std::fs::read(path_of(&run.join("lease"), 1)).unwrap();
    drop(lease);
    assert_eq!(std::fs::read(path_of(&run.join("lease"), 1)).unwrap(), before, "given back");
}

#[test]
fn waiting_ends_when_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let lease = take(slow(1), folder.path()).unwrap();
    set_time(&lease.path, SystemTime::now() - Duration::from_secs(3600));
    let error = Lease::take_as(stranger(2), folder.path(), || Ok(1), &|| true).unwrap_err();
    assert_eq!(error.exit, Exit::Again);
    assert!(error.to_string().contains("stopped while waiting"), "{error}");
}

#[test]
fn a_lease_that_was_removed_by_hand_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let lease = take(stranger(1), &folder.path().join("lease")).unwrap();
    std::fs::remove_dir_all(folder.path().join("lease")).unwrap();
    let error = lease.fence().check_now().unwrap_err();
    assert!(error.to_string().contains("was removed"), "{error}");
}
