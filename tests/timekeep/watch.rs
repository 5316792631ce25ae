//! `timekeep watch`, in a terminal and without one.

use std::fs;

use serde_json::{Value, json};
use unix::log::Log;

use super::place::Place;
use super::see;
use crate::common::pty::Terminal;
use crate::common::run::{prepare, send, start, wait_until};

/// Shows the cursor and leaves the alternate screen.
const RESTORED: &str = "\x1b[?25h\x1b[?1049l";

#[test]
fn a_page_follows_a_run_from_before_its_start_to_its_end() {
    let folder = prepare();
    let mut command = super::timekeep(&["watch", "run", "--interval", "200ms"]);
    command.current_dir(folder.path());
    let mut terminal = Terminal::start(&command);
    wait_until(|| terminal.page().contains("waiting: cannot open run: no such run directory"));
    assert!(!terminal.is_cooked() && terminal.written().starts_with("\x1b[?1049h\x1b[?25l"));

    let training = start(folder.path(), "run", &["-s", "training.updates=100000"]);
    wait_until(|| {
        let page = terminal.page();
        ["running", "codec; ", "/100000 ", " left at ", "loss ", "validation nrmse", "⠒"]
            .iter()
            .all(|part| page.contains(part))
    });
    let lines = |page: String| page.split("\r\n").count();
    assert!((30..=40).contains(&lines(terminal.page())), "{}", terminal.page());
    terminal.resize(60, 7);
    wait_until(|| lines(terminal.page()) <= 7);
    training.signal("TERM");
    assert_eq!(training.end().0, Some(75));
    wait_until(|| terminal.page().contains("stopped"));
    fs::remove_dir_all(folder.path().join("run")).unwrap();
    wait_until(|| terminal.page().contains("waiting: cannot open run"));

    assert!(terminal.child.try_wait().unwrap().is_none());
    send(terminal.child.id(), "TERM");
    assert_eq!(terminal.end(), Some(0));
    wait_until(|| terminal.written().ends_with(RESTORED));
    assert!(terminal.is_cooked());
}

#[test]
fn keys_end_it_with_status_0() {
    let place = Place::new();
    place.status("a", "stopped", 100);
    // Ctrl-C discards the keys before it, which must not make the program wait for others.
    for keys in ["q", "\x03", "\x03", "\x03", "\x03"] {
        let mut terminal = Terminal::start(&place.command(&["watch", "a", "absent"]));
        wait_until(|| terminal.page().contains("100/400"));
        terminal.press("xyz");
        terminal.press(keys);
        assert_eq!(terminal.end(), Some(0), "{keys:?}");
        wait_until(|| terminal.written().ends_with(RESTORED));
        assert!(terminal.is_cooked());
    }
}

#[test]
fn without_a_terminal_the_page_is_printed_once() {
    let place = Place::new();
    place.status("a", "stopped", 100);
    place.status("b", "finished", 400);
    fs::write(place.path("a/config.yaml"), "cost: {rate_per_hour: 2.5}").unwrap();
    let mut log = Log::open(&place.path("a/log.jsonl"), 1).unwrap();
    log.write("start", &json!({"update": 0, "task": "codec"})).unwrap();
    for update in 1..=100u32 {
        let loss = 1.0 / f64::from(update);
        log.write("update", &json!({"update": update, "loss": loss, "seconds": 0.5})).unwrap();
    }
    log.write("validation", &json!({"update": 90, "nrmse": 0.125, "seconds": 1.0})).unwrap();
    log.write("warning", &json!({"update": 95, "text": "the disk is \u{1b}[31m full"})).unwrap();
    // A record that is being written.
    let path = place.path("a/log.jsonl");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [&whole[..], &whole[..whole.len() / 300]].concat()).unwrap();

    let output = see(place.command(&["watch", "a", "b"]).env("LC_ALL", "C"));
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    for part in [
        "a  stopped  codec; attempt 2\n",
        "##########------------------------------ 100/400 25 %\n",
        "03:00:00 left\n",
        "time 01:00:00 of about 04:00:00 (8 device hours); cost 2.50 of about 10.00\n",
        "loss 0.01; nrmse 0.125 at update 90\n",
        "warning: the disk is \\u{1b}[31m full\n",
        "b  finished  codec; attempt 2\n",
        "training loss\n",
    ] {
        assert!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    assert!(output.stdout.is_ascii(), "{}", output.stdout);
    let records = place.records(&["watch", "a", "b"]);
    let found: Vec<&Value> = ["state", "cost", "estimated_cost"].map(|k| &records[0][k]).to_vec();
    assert_eq!(found, [&json!("stopped"), &json!(2.5), &json!(10.0)]);
    assert_eq!(records[0]["validation"], json!({"metric": "nrmse", "value": 0.125, "update": 90}));

    let output = place.see(&["watch", "absent", "a", "--once"]);
    assert_eq!(output.status, Some(66));
    assert!(
        output.stdout.contains("waiting: cannot open absent: no such run"),
        "{}",
        output.stdout
    );
    assert_eq!(place.see(&["watch", "a", "--interval", "0"]).status, Some(2));
}
