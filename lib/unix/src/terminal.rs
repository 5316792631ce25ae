//! The terminal: its capabilities, and a full-screen page.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::Result;
use crate::signal::Signals;

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and switches back to the main screen.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The settings to restore; set while a page fills the screen.
static SAVED: Mutex<Option<Saved>> = Mutex::new(None);

/// The keyboard settings; `None` if stdin is not a terminal.
struct Saved(Option<Termios>);

/// The capabilities that output may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether output may contain characters beyond ASCII.
    pub unicode: bool,
    /// Whether output may contain colours and other attributes.
    pub colour: bool,
}

impl Style {
    /// Returns the style of stdout: the locale determines the characters; colours require a terminal without NO_COLOR.
    pub fn stdout() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_lowercase().replace('-', "");
        let is_dumb = set("TERM").is_none_or(|term| term == "dumb");
        let colour = io::stdout().is_terminal() && set("NO_COLOR").is_none() && !is_dumb;
        Self { unicode: locale.contains("utf8"), colour }
    }

    /// Formats text with an SGR code, such as 31 for red or 1 for bold.
    pub fn paint(self, code: u8, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.into()
        }
    }
}

/// Returns the columns and rows of stdout: of the terminal, else COLUMNS and LINES, else 80 and 24.
pub fn size() -> (usize, usize) {
    let window = tcgetwinsize(io::stdout()).ok().map(|w| (w.ws_col, w.ws_row));
    let (columns, rows) = window.filter(|(c, r)| *c > 0 && *r > 0).unwrap_or_default();
    let number = |name: &str| std::env::var(name).ok()?.parse::<u16>().ok();
    let or = |found: u16, name, default| match found {
        0 => usize::from(number(name).filter(|n| *n > 0).unwrap_or(default)),
        found => usize::from(found),
    };
    (or(columns, "COLUMNS", 80), or(rows, "LINES", 24))
}

/// A page on the alternate screen of the terminal. Dropping it restores the screen and the keyboard.
pub struct Page {
    signals: Signals,
    has_keyboard: bool,
}

impl Page {
    /// Takes over the screen and disables the echo of keys. Signals other than USR2 ask to leave the page.
    pub fn open() -> Result<Self> {
        let signals = Signals::install()?;
        let resized = std::sync::Arc::default();
        // The handler does nothing, but the signal interrupts `wait`.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGWINCH, resized);
        let stdin = io::stdin();
        let mut saved = None;
        if let Some(before) = tcgetattr(&stdin).ok().filter(|_| stdin.is_terminal()) {
            let mut now = before.clone();
            now.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // Make reads nonblocking: Ctrl-C discards the keys that `poll` has just reported.
            now.special_codes[SpecialCodeIndex::VMIN] = 0;
            now.special_codes[SpecialCodeIndex::VTIME] = 0;
            // Disable Ctrl-Z, which would return to the shell without restoring the screen.
            now.special_codes[SpecialCodeIndex::VSUSP] = 0;
            if tcsetattr(&stdin, OptionalActions::Now, &now).is_ok() {
                saved = Some(before);
            }
        }
        let page = Self { signals, has_keyboard: saved.is_some() };
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Saved(saved));
        write(ENTER)?;
        Ok(page)
    }

    /// Replaces the content of the screen in a single write.
    pub fn show(&self, lines: &[String]) -> Result<()> {
        let lines: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
        write(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }

    /// Waits until the next redraw: after `interval`, or when the terminal is resized. Returns false if the user asked
    /// to leave, with the key q or a signal.
    pub fn wait(&mut self, interval: Duration) -> bool {
        let end = Instant::now() + interval;
        // A signal that arrives just before `poll` is noticed a second later.
        let longest = Timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.signals.stop_requested().is_some() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            let timeout = Timespec::try_from(left).map_or(longest, |left| left.min(longest));
            let stdin = io::stdin();
            let mut keyboard = [PollFd::new(&stdin, PollFlags::IN)];
            let watched = if self.has_keyboard { &mut keyboard[..] } else { &mut [] };
            match poll(watched, Some(&timeout)) {
                Ok(0) => {}
                Ok(_) => {
                    let hung_up = keyboard[0].revents().contains(PollFlags::HUP);
                    let mut key = [0];
                    match rustix::io::read(&stdin, &mut key) {
                        Ok(1) if matches!(key[0], b'q' | b'Q') => return false,
                        Ok(_) => self.has_keyboard = !hung_up,
                        Err(_) => self.has_keyboard = false,
                    }
                }
                // The terminal was resized, or a stop was requested.
                Err(_) => return self.signals.stop_requested().is_none(),
            }
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the screen and the keyboard if a page has taken them over. Never blocks, because a panic also calls it.
pub(crate) fn restore() {
    let saved = SAVED.try_lock().ok().and_then(|mut saved| saved.take());
    if let Some(Saved(keyboard)) = saved {
        let _ = write(LEAVE);
        if let Some(before) = keyboard {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
        }
    }
}

fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(crate::out::stdout_error)
}
