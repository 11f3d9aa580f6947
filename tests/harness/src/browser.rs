//! A real headless browser: Chromium, controlled over the WebDriver protocol (W3C) through its chromedriver.
//!
//! Needs Debian's packages `chromium` and `chromium-driver`. Accessibility is checked with axe-core from `tests/page`.
//! Puppeteer and Playwright would bring a second language and a hundred packages; WebDriver is JSON over HTTP.
//! axe-core is loaded into the page as a debugger would, since the page's own policy forbids every script.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use super::{eventually, find_program};

/// A browser starts slowly on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// One at a time: each has half a dozen processes.
static ONE: Mutex<()> = Mutex::const_new(());

/// The protocol's name of an element reference.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub const TAB: char = '\u{e004}';
pub const ENTER: char = '\u{e007}';
pub const SPACE: char = '\u{e00d}';

/// A running browser. It ends when this value is dropped.
pub struct Browser {
    port: u16,
    session: String,
    /// The guardian's standard input is a pipe that closes when this process ends in any way; the driver then ends its
    /// browser.
    guardian: Child,
    _home: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// Kills the whole process group at the end, also a browser that no longer responds.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
(trap - INT HUP TERM; exec "$1" --port=0 --log-path="$HOME/log") &
read -r _
kill -KILL 0
"#;

/// The size and color scheme of a page.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    pub width: u32,
    pub dark: bool,
}

/// Whether pages may run scripts. The tests' own debugger scripts always run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scripts {
    Off,
    On,
}

impl Browser {
    /// Starts a browser with an empty profile; returns `None` with a message if none is installed.
    pub async fn start(scripts: Scripts) -> Option<Self> {
        let Some(driver) = find_program(&["chromedriver"]).filter(|_| find_program(&["chromium"]).is_some()) else {
            super::skip("no browser (apt-get install chromium chromium-driver)");
            return None;
        };
        let turn = ONE.lock().await;
        let home = tempfile::Builder::new().prefix("oncegate-browser-").tempdir().unwrap();
        // On a busy machine, chromedriver has ended before its first line, and has stood still, each once.
        let mut tries = 0;
        let (guardian, port) = loop {
            tries += 1;
            let mut guardian = Command::new("sh");
            guardian.arg("-c").arg(GUARDIAN).arg("sh").arg(&driver).env("HOME", home.path()).process_group(0);
            let guardian = guardian.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut guardian = guardian.spawn().unwrap();
            let output = BufReader::new(guardian.stdout.take().unwrap());
            let port = tokio::task::spawn_blocking(move || {
                let mut lines = output.lines().map_while(Result::ok);
                let line = lines.find(|line| line.contains("started successfully on port"))?;
                // Further output must not fill the pipe.
                std::thread::spawn(move || lines.for_each(drop));
                line.rsplit(' ').next().unwrap().trim_end_matches('.').parse::<u16>().ok()
            });
            match timeout(TEST_TIMEOUT / 3, port).await.ok().and_then(Result::unwrap) {
                Some(port) => break (guardian, port),
                None if tries < 3 => drop(guardian.wait()),
                None => panic!("chromedriver has ended or stood still three times before it had a port"),
            }
        };
        let mut browser = Self { port, session: String::new(), guardian, _home: home, _turn: turn };
        let profile = browser._home.path().join("profile");
        let profile = format!("--user-data-dir={}", profile.display());
        // Root and containers have no sandbox; only the tests' own pages are opened.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            &profile,
        ];
        let options = json!({ "binary": find_program(&["chromium"]).unwrap(), "args": arguments });
        let wanted =
            json!({ "capabilities": { "alwaysMatch": { "browserName": "chrome", "goog:chromeOptions": options } } });
        let session = browser.call_driver("POST", "/session", Some(wanted)).await;
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        if scripts == Scripts::Off {
            browser.debugger("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
            browser
                .open("data:text/html,<noscript>none runs</noscript><script>document.write('one runs')</script>")
                .await;
            assert_eq!(browser.text().await.trim(), "none runs");
        }
        Some(browser)
    }

    /// Sends a command to the driver; panics if the driver refuses it.
    async fn call_driver(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let body = body.map_or_else(String::new, |body| body.to_string());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        );
        let exchange = async {
            let mut wire = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
            wire.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            // The driver keeps the connection open regardless of the request's fields.
            while !is_whole(&answer) {
                assert_ne!(wire.read_buf(&mut answer).await.unwrap(), 0, "it breaks off");
            }
            String::from_utf8(answer).unwrap()
        };
        let answer = timeout(TEST_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| panic!("the browser does not answer: {path} {body:.200}"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let mut reply: Value = serde_json::from_str(body).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {head} {reply:#}");
        reply["value"].take()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.call_driver("POST", &format!("{}/{path}", self.session), Some(body)).await
    }

    async fn get(&self, path: &str) -> Value {
        self.call_driver("GET", &format!("{}/{path}", self.session), None).await
    }

    /// Runs a command of the browser's debugger.
    async fn debugger(&self, command: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    pub async fn open(&self, url: &str) {
        self.post("url", json!({ "url": url })).await;
    }

    /// Forgets all sessions, as the browser of another person.
    pub async fn forget_cookies(&self) {
        self.debugger("Network.clearBrowserCookies", json!({})).await;
    }

    pub async fn url(&self) -> String {
        self.get("url").await.as_str().unwrap().to_owned()
    }

    /// Waits until the current page's text has these words.
    pub async fn wait_for_text(&self, words: &str) {
        eventually(TEST_TIMEOUT, async || self.text().await.contains(words).then_some(())).await;
    }

    /// The page's visible text; empty while the page changes.
    pub async fn text(&self) -> String {
        let text = self.debugger("Runtime.evaluate", json!({ "expression": "document.body?.innerText ?? ''" })).await;
        text["result"]["value"].as_str().unwrap_or_default().to_owned()
    }

    /// Evaluates an expression in the debugger.
    pub async fn value(&self, expression: &str) -> Value {
        // With scripts disabled, no promise resolves.
        let asked =
            json!({ "expression": expression, "awaitPromise": expression.contains(".then("), "returnByValue": true });
        let mut reply = self.debugger("Runtime.evaluate", asked).await;
        assert!(reply["exceptionDetails"].is_null(), "{expression:.200}: {reply:#}");
        reply["result"]["value"].take()
    }

    /// Applies to all pages from now on.
    pub async fn set_screen(&self, screen: Screen) {
        let size = json!({ "width": screen.width, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        self.debugger("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = if screen.dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.debugger("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Switches to the print layout, until [`Self::set_screen`].
    pub async fn set_print_media(&self) {
        self.debugger("Emulation.setEmulatedMedia", json!({ "media": "print" })).await;
    }

    /// Saves a picture of the whole page below the build folder, for people to look at. Returns its path.
    pub async fn picture(&self, name: &str) -> PathBuf {
        let shot = self.debugger("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        let picture = BASE64_STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        let folder = crate::program().parent().unwrap().with_file_name("page");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}.png"));
        std::fs::write(&path, picture).unwrap();
        path
    }

    /// Presses these keys, one after the other.
    pub async fn press(&self, keys: &[char]) {
        let press = |key: &char| [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })];
        let actions: Vec<_> = keys.iter().flat_map(press).collect();
        self.post("actions", json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] })).await;
    }

    pub async fn type_text(&self, text: &str) {
        self.press(&text.chars().collect::<Vec<_>>()).await;
    }

    /// Presses Tab until the element with this selector has the focus. Each element on the way must show its focus.
    pub async fn tab_to(&self, selector: &str) {
        for _ in 0..80 {
            self.press(&[TAB]).await;
            let at = self.get("element/active").await;
            let at = at[ELEMENT].as_str().unwrap();
            let outline = self.get(&format!("element/{at}/css/outline-style")).await;
            let width = self.get(&format!("element/{at}/css/outline-width")).await;
            let tag = self.get(&format!("element/{at}/name")).await;
            if tag != "body" && tag != "html" {
                assert!(outline != "none" && width != "0px", "{tag} does not show its focus: {outline} {width}");
            }
            let is_there = format!("document.activeElement.matches({selector:?})");
            if self.value(&is_there).await == true {
                return;
            }
        }
        panic!("Tab does not come to {selector}");
    }

    /// Checks that nothing extends beyond the side of the screen.
    pub async fn assert_fits(&self, what: &str) {
        let wide = "[document.documentElement.scrollWidth, innerWidth, \
                    [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1) \
                    .map(e => e.outerHTML.slice(0, 120)).slice(0, 5)]";
        let reply = self.value(wide).await;
        assert!(reply[0].as_u64() <= reply[1].as_u64(), "{what} is too wide: {reply:#}");
    }

    /// Checks that axe-core finds no barrier. Prints a message if axe-core is not installed.
    pub async fn assert_accessible(&self, what: &str) {
        let file = crate::root().join("tests/page/node_modules/axe-core/axe.min.js");
        let Ok(axe) = std::fs::read_to_string(file) else {
            return super::skip("no axe-core (npm ci --prefix tests/page)");
        };
        self.value(&format!("{axe}; true")).await;
        let found = "axe.run(document, { resultTypes: ['violations'] }).then(told => ({ passes: told.passes.length, \
                     violations: told.violations.map(v => [v.id, v.impact, v.nodes.map(n => n.html + ' ' + n.failureSummary)]) }))";
        let found = self.value(found).await;
        assert!(found["passes"].as_u64() > Some(10), "axe-core has looked at the page: {found:#}");
        assert_eq!(found["violations"], json!([]), "{what}: {found:#}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the session regularly if the driver still responds.
        let request = format!("DELETE {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", self.session);
        if let Ok(mut wire) = std::net::TcpStream::connect(("127.0.0.1", self.port)) {
            let _ = wire.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = wire.write_all(request.as_bytes()).and_then(|()| wire.read(&mut [0; 1]));
        }
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}

/// Whether an answer is complete.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let Some(head) = text.find("\r\n\r\n") else { return false };
    let length = text[..head].split_once("content-length:").unwrap().1;
    answer.len() >= head + 4 + length.lines().next().unwrap().trim().parse::<usize>().unwrap()
}
