//! A headless Chromium, spoken to in the DevTools protocol over a pipe: no port is opened.
//!
//! Messages are JSON objects that end with a NUL byte.

use std::{
    cell::RefCell,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Names of the program, the first of which that exists is used.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    profile: PathBuf,
    session: Option<String>,
    sent: u64,
    /// Messages other than answers.
    events: RefCell<Vec<Value>>,
}

impl Browser {
    /// Starts a browser with an empty page.
    ///
    /// # Panics
    ///
    /// Without a Chromium, because nothing else would test the page.
    pub(crate) fn start(name: &str) -> Self {
        let program = find().expect(
            "no Chromium found: install it (Debian: apt-get install chromium, or scripts/setup), or \
             set HOWDAH_CHROMIUM to its path",
        );
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("chromium-{name}-{}", std::process::id()));
        fs::create_dir_all(&profile).unwrap();
        // The browser reads commands from descriptor 3 and answers on descriptor 4.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"])
            .args(["--hide-scrollbars", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            for message in output.split(0) {
                let Ok(message) = message else { break };
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let events = RefCell::default();
        let mut browser = Self { child, input, messages, profile, session: None, sent: 0, events };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Executes a command and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Like [`Self::call`], but returns an error of the browser.
    fn try_call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.sent += 1;
        let id = self.sent;
        let mut command = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&command).unwrap();
        bytes.push(0);
        self.input.write_all(&bytes).unwrap();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let message = self.receive(deadline, method);
            if message["id"] == json!(id) {
                let error = message["error"].clone();
                return if error.is_null() { Ok(message["result"].clone()) } else { Err(error) };
            }
            self.events.borrow_mut().push(message);
        }
    }

    fn receive(&self, deadline: Instant, awaited: &str) -> Value {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.messages.recv_timeout(left) {
            Ok(message) => message,
            Err(error) => panic!("no answer to {awaited}: {error}"),
        }
    }

    /// Opens a file and waits until it is loaded.
    pub(crate) fn open(&mut self, file: &Path) {
        self.open_url(&format!("file://{}", file.display()));
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn open_url(&mut self, url: &str) {
        self.events.borrow_mut().clear();
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{opened}");
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let is_loaded = |event: &Value| event["method"] == "Page.loadEventFired";
        while !self.events.borrow().iter().any(is_loaded) {
            let event = self.receive(deadline, "Page.navigate");
            self.events.borrow_mut().push(event);
        }
    }

    /// The value of an expression, which may be a promise.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &params);
        let exception = &result["exceptionDetails"];
        assert!(exception.is_null(), "{expression}: {exception}");
        result["result"]["value"].clone()
    }

    /// Whether an expression is true; false while the page is being replaced by another one.
    pub(crate) fn is_true(&mut self, expression: &str) -> bool {
        let params =
            json!({ "expression": format!("Boolean({expression})"), "returnByValue": true });
        let result = self.try_call("Runtime.evaluate", &params);
        result.is_ok_and(|result| result["result"]["value"] == json!(true))
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_until(&mut self, what: &str, expression: &str) {
        let params = format!(
            "new Promise((resolve) => {{ const end = Date.now() + 10000; const check = () => \
             ({expression}) ? resolve(true) : Date.now() > end ? resolve(false) : \
             requestAnimationFrame(check); check(); }})"
        );
        assert_eq!(self.eval(&params), json!(true), "{what}: {expression}");
    }

    /// Clicks in the middle of an element.
    pub(crate) fn click(&mut self, selector: &str) {
        let (x, y) = self.middle_of(selector);
        for kind in ["mousePressed", "mouseReleased"] {
            self.mouse(kind, x, y, 1);
        }
    }

    /// Presses the mouse at one place of an element, moves it, and releases it at another. Places
    /// are shares of its width.
    pub(crate) fn drag(&mut self, selector: &str, from: f64, to: f64) {
        let (x, y) = self.middle_of(selector);
        let expression = format!("document.querySelector({selector:?}).clientWidth");
        let width = self.eval(&expression).as_f64().unwrap();
        let at = |share: f64| x + (share - 0.5) * width;
        self.mouse("mouseMoved", at(from), y, 0);
        self.mouse("mousePressed", at(from), y, 1);
        self.mouse("mouseMoved", at((from + to) / 2.0), y, 1);
        self.mouse("mouseMoved", at(to), y, 1);
        self.mouse("mouseReleased", at(to), y, 1);
    }

    /// Moves the mouse over the middle of an element.
    pub(crate) fn hover(&mut self, selector: &str) {
        let (x, y) = self.middle_of(selector);
        self.mouse("mouseMoved", x - 1.0, y, 0);
        self.mouse("mouseMoved", x, y, 0);
    }

    fn middle_of(&mut self, selector: &str) -> (f64, f64) {
        let at = self.eval(&format!(
            "(() => {{ const element = document.querySelector({selector:?}); \
             element.scrollIntoView({{ block: 'center' }}); const box = \
             element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / \
             2]; }})()"
        ));
        (at[0].as_f64().unwrap(), at[1].as_f64().unwrap())
    }

    fn mouse(&mut self, kind: &str, x: f64, y: f64, clicks: u32) {
        let button = if clicks > 0 { "left" } else { "none" };
        let params = json!({
            "type": kind, "x": x, "y": y, "button": button, "buttons": clicks.min(1),
            "clickCount": clicks,
        });
        self.call("Input.dispatchMouseEvent", &params);
    }

    /// Presses and releases a key.
    pub(crate) fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    /// Sets the size of the window, in pixels of CSS.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let params = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.call("Emulation.setDeviceMetricsOverride", &params);
    }

    /// Sets the preferred colour scheme: `light` or `dark`.
    pub(crate) fn set_scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Writes a picture of the whole page, or of the window.
    pub(crate) fn screenshot(&mut self, file: &Path, is_whole: bool) {
        let params = json!({ "format": "png", "captureBeyondViewport": is_whole });
        let params = if is_whole {
            let size = self.call("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
            let clip = json!({
                "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1,
            });
            json!({ "format": "png", "captureBeyondViewport": true, "clip": clip })
        } else {
            params
        };
        let result = self.call("Page.captureScreenshot", &params);
        write_base64(file, &result["data"]);
    }

    /// Prints the page into a PDF file.
    pub(crate) fn print(&mut self, file: &Path) {
        let params = json!({ "printBackground": false, "paperWidth": 8.27, "paperHeight": 11.69 });
        let result = self.call("Page.printToPDF", &params);
        write_base64(file, &result["data"]);
    }

    /// Everything that went wrong on the page: exceptions, errors on the console, violations of the
    /// content security policy, and requests other than for the page itself.
    pub(crate) fn problems(&mut self, file: &Path) -> Vec<String> {
        let page = format!("file://{}", file.display());
        self.problems_except(|url| url.split('#').next() == Some(page.as_str()))
    }

    /// Like [`Self::problems`], except for requests of URLs that are expected.
    pub(crate) fn problems_except(&mut self, is_expected: impl Fn(&str) -> bool) -> Vec<String> {
        // Events that were caused before arrive before the answer.
        self.eval("1");
        let events = self.events.borrow();
        let problems = events.iter().filter(|event| {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" | "Log.entryAdded" => true,
                "Runtime.consoleAPICalled" => {
                    ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind)
                }
                "Network.requestWillBeSent" => {
                    !is_expected(params["request"]["url"].as_str().unwrap_or_default())
                }
                _ => false,
            }
        });
        problems.map(ToString::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A browser that has already ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("HOWDAH_CHROMIUM") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    PROGRAMS
        .iter()
        .flat_map(|program| folders.iter().map(move |folder| folder.join(program)))
        .find(|file| file.is_file())
}

fn write_base64(file: &Path, data: &Value) {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    fs::write(file, BASE64_STANDARD.decode(data.as_str().unwrap()).unwrap()).unwrap();
}
