//! A program in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A program whose terminal is this one.
pub struct Terminal {
    pub child: Child,
    master: File,
    /// Kept open, so that what the program has written can be read after its end.
    slave: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a command in a terminal of 80 columns and 40 rows that knows UTF-8 and colours.
    pub fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        // setsid makes it the controlling terminal, which turns Ctrl-C and a resize into signals.
        let mut inside = Command::new("setsid");
        inside.arg("--ctty").arg(command.get_program()).args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside.env("LC_ALL", "C.UTF-8").env("TERM", "xterm").env_remove("NO_COLOR");
        let [stdin, stdout, stderr] = [(); 3].map(|()| slave.try_clone().unwrap());
        let master = File::from(master);
        let terminal = Self {
            child: inside.stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap(),
            master: master.try_clone().unwrap(),
            slave,
            written: Arc::default(),
        };
        terminal.resize(80, 40);
        let written = terminal.written.clone();
        let mut reader = master;
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                written.lock().unwrap().extend(&bytes[..count]);
            }
        });
        terminal
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.slave, size).unwrap();
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end of the program and returns its exit status. A program that waits for ever is killed.
    pub fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(300);
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                self.child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.child.wait().unwrap().code()
    }

    /// Whether keys are echoed and lines can be edited.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// All that was written.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// What was written since the program began to draw the last complete page.
    pub fn page(&self) -> String {
        let written = self.written();
        let whole = written.rfind("\x1b[J").map_or("", |end| &written[..end]);
        whole.rsplit("\x1b[H").next().unwrap_or_default().to_string()
    }
}
