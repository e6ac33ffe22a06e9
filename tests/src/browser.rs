//! A real browser without a screen: Debian's Chromium, told what to do by the DevTools protocol.
//!
//! The protocol runs over two pipes, descriptors 3 and 4 of the browser: one JSON text each way,
//! with a zero byte behind it.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::process::{Owned, Scratch};
use crate::wait;

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    _process: Owned,
    _profile: Scratch,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Value,
    calls: u64,
}

/// Chromium, where it is.
fn program() -> Option<&'static str> {
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(is_there)
}

impl Browser {
    /// Starts one of this width, in pixels; `None`: there is no Chromium.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn start(width: u32) -> Option<Self> {
        let profile = Scratch::new("browser");
        let size = format!("--window-size={width},900");
        let home = format!("--user-data-dir={}", profile.path().display());
        let mut command = Command::new("sh");
        // The pipes of the shell become descriptors 3 and 4.
        command.args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, "sh", program()?]);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--remote-debugging-pipe", &size, &home, "about:blank"]);
        let (mut process, input) =
            Owned::spawn_with_input(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let output = BufReader::new(process.stdout());
        let (session, calls) = (Value::Null, 0);
        let mut browser =
            Self { _process: process, _profile: profile, input, output, session, calls };
        let made = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": made["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", target)["sessionId"].clone();
        Some(browser)
    }

    /// Makes a call of the protocol; returns its result.
    ///
    /// # Panics
    /// If the browser refuses it.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).expect("a browser");
        loop {
            let mut text = Vec::new();
            self.output.read_until(0, &mut text).expect("a browser");
            assert_eq!(text.pop(), Some(0), "the browser ended in {method}");
            let mut said: Value = serde_json::from_slice(&text).expect("JSON");
            if said["id"] == self.calls {
                assert!(said["error"].is_null(), "{method}: {said}");
                return said["result"].take();
            }
        }
    }

    /// Opens an address.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
    }

    /// The value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut said = self.call("Runtime.evaluate", asked);
        assert!(said["exceptionDetails"].is_null(), "{expression}: {said}");
        said["result"]["value"].take()
    }

    /// Waits until an expression in the page is true.
    ///
    /// # Panics
    /// If it never is; shows the page's text.
    pub fn until(&mut self, expression: &str) {
        let deadline = std::time::Instant::now() + wait::PATIENCE;
        while self.value(&format!("Boolean({expression})")) != true {
            let is_late = std::time::Instant::now() > deadline;
            assert!(!is_late, "never: {expression}\n{}", self.value("document.body?.innerText"));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Types into the field of this selector, as a user does.
    pub fn fill(&mut self, selector: &str, text: &str) {
        self.value(&format!("document.querySelector({selector:?}).focus()"));
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "text": text,
                "windowsVirtualKeyCode": if key == "Enter" { 13 } else { 9 }});
            self.call("Input.dispatchKeyEvent", event);
        }
    }
}
