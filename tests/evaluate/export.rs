//! `evaluate export`. That the tools read what it writes is checked by `make interop` and by the script that made the
//! golden files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use crate::common::run::{newest_update, prepare, records, start, train, wait_until};
use crate::common::{Captured, shell};

const FORMATS: [&str; 3] = ["tensorboard", "wandb", "csv"];
const LABELS: &str =
    "--project tests --tags small,golden --notes 'two attempts | and a rewind' --name Small";

/// A copy of the golden run and evaluation, with the times that the golden files contain.
fn golden() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/export");
    let copied = shell(folder.path(), &format!("cp -r {source}/small {source}/scores ."));
    assert_eq!(copied.status, Some(0), "{}", copied.stderr);
    let metrics = File::options().write(true).open(folder.path().join("scores/metrics.json"));
    metrics.unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1_767_225_720)).unwrap();
    folder
}

fn export(folder: &Path, words: &str) -> Captured {
    shell(folder, &format!("evaluate export {words}"))
}

fn done(folder: &Path, words: &str) -> Captured {
    let output = export(folder, words);
    assert_eq!(output.status, Some(0), "evaluate export {words}: {}", output.stderr);
    output
}

/// The files below a folder by path.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Exports in every file format into one folder.
fn export_all(folder: &Path, words: &str) {
    for format in FORMATS {
        done(folder, &format!("--format {format} {words}"));
    }
}

#[test]
fn the_golden_run_gives_the_golden_files() {
    let folder = golden();
    for format in ["tensorboard", "wandb --entity team", "csv"] {
        let words = format!("--format {format} -o made small --evaluation scores {LABELS}");
        done(folder.path(), &words);
    }
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/export/expected");
    let (made, expected) = (tree(&folder.path().join("made")), tree(Path::new(expected)));
    let names = |tree: &BTreeMap<String, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&made), names(&expected));
    assert_eq!(made.len(), 13);
    for (name, bytes) in &made {
        assert!(*bytes == expected[name], "{name} differs");
    }
}

#[test]
fn a_run_that_is_killed_and_resumed_is_one_curve() {
    let temporary = prepare();
    let folder = temporary.path();
    let more = ["-s", "training.updates=150", "-s", "checkpoint.every=20", "-s", "name=a curve"];
    let mut followers = Vec::new();
    for last in [15, 55, 95, 0] {
        let mut run = start(folder, "run", &more);
        match last {
            0 => assert_eq!(run.end().0, Some(0)),
            last => {
                run.wait_for_update(&folder.join("run"), last);
                assert!(run.is_alive(), "the run ended before it was killed");
                drop(run); // kills it
                export_all(folder, "-o once run");
            }
        }
        if followers.is_empty() {
            let command = |format| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_evaluate"));
                let words = ["export", "--format", format, "-o", "followed", "--follow", "run"];
                command.args(words).current_dir(folder).stdout(Stdio::null()).spawn().unwrap()
            };
            followers.extend(FORMATS.map(command));
        }
    }
    let found = records(&folder.join("run"));
    let starts = found.iter().filter(|record| record["kind"] == "start").count();
    let updates = found.iter().filter(|record| record["kind"] == "update").count();
    assert!(starts == 4 && updates > 150, "{starts} attempts, {updates} updates: none repeated");
    export_all(folder, "-o once run");
    for mut follower in followers {
        assert!(follower.wait().unwrap().success());
    }
    // Exported at once, after every attempt, and while the run went on: the same bytes.
    export_all(folder, "-o fresh run");
    let fresh = tree(&folder.join("fresh"));
    assert!(fresh == tree(&folder.join("once")) && fresh == tree(&folder.join("followed")));
    let [about, history] = ["run/run.csv", "run/history.csv"]
        .map(|file| String::from_utf8(fresh[file].clone()).unwrap());
    assert!(about.contains("\nname,a curve\n"), "{about}");
    let mut lines = history.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let column = |name: &str| header.iter().position(|own| *own == name).unwrap();
    let rows: Vec<Vec<&str>> = lines.collect();
    let updates: Vec<u64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(updates, (1..=150).collect::<Vec<u64>>());
    let filled = |name: &str| rows.iter().filter(|row| !row[column(name)].is_empty()).count();
    assert_eq!((filled("train/loss"), filled("eval/nrmse")), (150, 14));
    assert!(filled("system/memory_bytes") >= 1 && filled("system/cpu_percent") >= 1, "{header:?}");
    // The loss of every update is that of its last record.
    let loss: BTreeMap<u64, String> = found
        .iter()
        .filter(|record| record["kind"] == "update")
        .map(|record| (record["update"].as_u64().unwrap(), record["loss"].to_string()))
        .collect();
    for row in &rows {
        let ours: f64 = row[column("train/loss")].parse().unwrap();
        assert_eq!(ours, loss[&row[0].parse().unwrap()].parse::<f64>().unwrap(), "{row:?}");
    }
}

#[test]
fn exporting_again_appends_and_an_interrupted_write_is_continued() {
    let folder = golden();
    let (folder, log) = (folder.path(), folder.path().join("small/log.jsonl"));
    let whole = fs::read_to_string(&log).unwrap();
    let status = fs::read_to_string(folder.join("small/status.json")).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    // Up to the first validation, while the run was running.
    fs::write(&log, lines[..5].concat()).unwrap();
    fs::write(folder.join("small/status.json"), status.replace("finished", "running")).unwrap();
    export_all(folder, "-o made small");
    let events = folder.join("made/small/events.out.tfevents.1767225600.longhaul");
    let offline = folder.join("made/wandb/offline-run-20260101_000000-small/run-small.wandb");
    let files = [events, offline];
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let before = files.each_ref().map(|path| inode(path));
    // A write that was cut off.
    for path in &files {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 5]).unwrap();
    }
    fs::write(&log, &whole).unwrap();
    fs::write(folder.join("small/status.json"), status).unwrap();
    export_all(folder, "-o made small");
    export_all(folder, "-o fresh small");
    assert_eq!(files.each_ref().map(|path| inode(path)), before, "appended, not replaced");
    assert!(tree(&folder.join("made")) == tree(&folder.join("fresh")));
}

#[test]
fn files_of_others_are_not_replaced() {
    let folder = golden();
    let folder = folder.path();
    export_all(folder, "-o made small");
    let files = tree(&folder.join("made"));
    for (format, file) in [
        ("tensorboard", "small/events.out.tfevents.1767225600.longhaul"),
        ("wandb", "wandb/offline-run-20260101_000000-small/run-small.wandb"),
        ("csv", "small/run.csv"),
    ] {
        let path = folder.join("made").join(file);
        fs::write(&path, "mine").unwrap();
        let words = format!("--format {format} -o made small --project other");
        let output = export(folder, &words);
        assert_eq!(output.status, Some(73), "{}", output.stderr);
        assert!(output.stderr.contains("--force"), "{}", output.stderr);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        done(folder, &format!("--format {format} -o made small --force"));
        assert!(fs::read(&path).unwrap() == files[file], "{file}");
    }
    fs::remove_file(folder.join("made/small/run.csv")).unwrap();
    let output = export(folder, "--format csv -o made small");
    assert!(
        output.status == Some(73) && output.stderr.contains("history.csv"),
        "{}",
        output.stderr
    );
    // TensorBoard would draw both files as one run.
    fs::write(folder.join("made/small/events.out.tfevents.1.host"), "").unwrap();
    let output = export(folder, "--format tensorboard -o made small");
    assert!(output.status == Some(73) && output.stderr.contains("tfevents.1"), "{}", output.stderr);
}

#[test]
fn mistakes_are_named() {
    let folder = golden();
    let folder = folder.path();
    fs::create_dir_all(folder.join("other/small")).unwrap();
    assert_eq!(shell(folder, "cp -r small renamed").status, Some(0));
    for (words, status, says) in [
        ("--format csv small", 2, "--output <DIR>"),
        ("--format csv --url http://localhost small", 2, "--format mlflow"),
        ("--format mlflow -o made small", 2, "--url"),
        ("--format mlflow --url localhost:5000 small", 2, "http://"),
        ("--format mlflow --url http://me:hunter22@localhost small", 2, "MLFLOW_TRACKING_PASSWORD"),
        ("--format csv --entity a -o made small", 2, "--format wandb"),
        ("--format csv -o made small other/small", 2, "two are named small"),
        ("--format csv -o made small other --name a", 2, "single RUN"),
        ("--format csv -o made scores", 66, "log.jsonl"),
        ("--format csv -o made nowhere", 66, "nowhere"),
        ("--format csv -o made small --evaluation small", 66, "metrics.json"),
        ("--format csv -o made renamed --evaluation scores", 65, "of small, not of renamed"),
        ("--format csv -o small/log.jsonl small", 73, "log.jsonl"),
    ] {
        let output = export(folder, words);
        assert_eq!(output.status, Some(status), "{words}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{words}: {}", output.stderr);
        assert!(!output.stderr.contains("hunter22"), "{}", output.stderr);
        assert!(!folder.join("made").exists(), "{words}");
    }
}

#[test]
fn secrets_are_in_no_export() {
    let folder = golden();
    let folder = folder.path();
    let config = folder.join("small/config.yaml");
    fs::write(&config, "a: planted-secret\nb: [x planted-secret]\n").unwrap();
    for name in ["worst.jsonl", "worst.html"] {
        let path = folder.join("scores").join(name);
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replace("Read it", "planted-secret").replace("Worst", "planted-secret");
        fs::write(path, text).unwrap();
    }
    let words = "-o made small --evaluation scores --notes 'is planted-secret'";
    for format in FORMATS {
        let script = format!("MY_TOKEN=planted-secret evaluate export --format {format} {words}");
        let output = shell(folder, &script);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
    }
    let is_in = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    let files = tree(&folder.join("made"));
    assert_eq!(files.len(), 13);
    for (name, bytes) in &files {
        assert!(!is_in(bytes, "planted-secret"), "{name}");
    }
    assert_eq!(files.values().filter(|bytes| is_in(bytes, "${MY_TOKEN}")).count(), 6);
}

/// A server that gives one answer; returns its address and what it was sent.
fn answering(status: &str, body: &str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    };
    (url, std::thread::spawn(serve))
}

#[test]
fn what_a_server_refuses_is_one_line() {
    let folder = golden();
    let folder = folder.path();
    let refusal =
        r#"{"error_code": "INVALID_PARAMETER_VALUE", "message": "bad\nname for hunter22"}"#;
    let shown = r"INVALID_PARAMETER_VALUE (400): bad\nname for ${MLFLOW_TRACKING_TOKEN}";
    for (status, body, says) in [
        ("400 Bad Request", refusal, shown),
        ("401 Unauthorized", "", "set MLFLOW_TRACKING_TOKEN"),
        ("200 OK", "<html>", "check --url"),
    ] {
        let (url, server) = answering(status, body);
        let secret = "NO_PROXY='*' MLFLOW_TRACKING_TOKEN=hunter22";
        let script = format!("{secret} evaluate export --format mlflow --url {url}/ small");
        let output = shell(folder, &script);
        assert_eq!(output.status, Some(1), "{}", output.stderr);
        assert!(output.stderr.contains(says) && output.stderr.contains(&url), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        let request = server.join().unwrap();
        assert!(request.contains("Bearer hunter22"), "{request}");
        assert!(request.starts_with("GET /api/2.0/mlflow/experiments/get-by-name?"), "{request}");
    }
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = export(folder, &format!("--format mlflow --url http://{free} small"));
    assert_eq!(output.status, Some(74), "{}", output.stderr);
    assert!(
        output.stderr.contains("refused") && output.stderr.lines().count() == 1,
        "{}",
        output.stderr
    );
}

#[test]
fn a_follower_that_is_stopped_exports_what_there_is() {
    let temporary = prepare();
    let folder = temporary.path();
    let (status, stderr) = train(folder, "run", &["-s", "training.updates=5"]);
    assert_eq!(status, Some(0), "{stderr}");
    let path = folder.join("run/status.json");
    let text = fs::read_to_string(&path).unwrap().replace("finished", "running");
    fs::write(&path, text).unwrap();
    assert_eq!(newest_update(&folder.join("run")), 5);
    let mut command = Command::new(env!("CARGO_BIN_EXE_evaluate"));
    let words = ["export", "--format", "csv", "-o", "made", "--follow", "run"];
    let mut follower =
        command.args(words).current_dir(folder).stderr(Stdio::piped()).spawn().unwrap();
    let history = folder.join("made/run/history.csv");
    let lines = || fs::read_to_string(&history).unwrap_or_default().lines().count();
    // The newest update may still get values.
    wait_until(|| lines() == 5);
    assert!(crate::common::run::send(follower.id(), "TERM"));
    let status = follower.wait().unwrap();
    assert_eq!((status.code(), lines()), (Some(75), 6));
}
