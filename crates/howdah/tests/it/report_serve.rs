//! `howdah report serve`, by real HTTP requests and in a browser.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use howdah_report::rehearsal::{
    RehearsalVerdict,
    html::{Page, TimeLines},
};
use rustix::process::Signal;

use crate::{browser::Browser, howdah, text};

/// Time limit of one request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A response to a request.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl HttpReply {
    /// The value of a header; its name is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(REPLY_TIMEOUT)).unwrap();
    stream
}

/// Sends a request and reads the response.
pub(crate) fn request(address: SocketAddr, head: &str) -> HttpReply {
    let mut stream = connect(address);
    // A server that refuses a request may close the connection before it has read it.
    let _ = write!(stream, "{head}\r\n\r\n");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let reply = String::from_utf8(bytes).unwrap();
    let (headers, body) = reply.split_once("\r\n\r\n").unwrap_or((reply.as_str(), ""));
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    HttpReply { status, headers: headers.replace("\r\n", "\n"), body: body.to_owned() }
}

/// Gets a path like a browser that was told the address.
pub(crate) fn get(address: SocketAddr, path: &str) -> HttpReply {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}"))
}

/// Requests that must be refused by any server of pages: their heads, and the status.
pub(crate) fn refused_requests(address: SocketAddr, path: &str) -> Vec<(String, u16)> {
    let port = address.port();
    let get = |headers: &str| format!("GET {path} HTTP/1.1\r\n{headers}");
    let own = format!("Host: {address}\r\n");
    let mut requests = vec![
        (get(&format!("Host: evil.example:{port}")), 403),
        (get(&format!("Host: localhost.evil.example:{port}")), 403),
        (get("Host: 127.0.0.1"), 403),
        (get(&format!("Host: 127.0.0.1:{}", port ^ 1)), 403),
        (get(&format!("{own}Host: evil.example:{port}")), 400),
        (format!("GET http://evil.example:{port}{path} HTTP/1.1\r\n{own}X: y"), 403),
        (format!("GET {path} HTTP/1.0"), 403),
        (get(&format!("{own}Origin: http://evil.example")), 403),
        (get(&format!("{own}Origin: null")), 403),
        (get(&format!("{own}Origin: https://{address}")), 403),
        (get(&format!("{own}Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors")), 403),
    ];
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"] {
        requests.push((format!("{method} {path} HTTP/1.1\r\n{own}Content-Length: 0"), 405));
    }
    requests
}

/// Checks that a server refuses [`refused_requests`].
pub(crate) fn assert_refusals(address: SocketAddr, path: &str) {
    for (head, status) in refused_requests(address, path) {
        let reply = request(address, &head);
        // Two hosts are an error for any server; which one depends on the layer that finds it.
        let is_as_expected = reply.status == status || (status == 400 && reply.status == 403);
        assert!(is_as_expected, "{head}: {reply:?}");
        assert!(!reply.body.contains("ehearsal of shop"), "{head}: {reply:?}");
    }
}

/// A running `howdah report serve`.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(folder: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["report", "serve", "."])
            .args(args)
            .current_dir(folder)
            .env("HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/\n"));
        let address = address.unwrap_or_else(|| panic!("not a URL: {line:?}")).parse().unwrap();
        Self { child, address }
    }

    /// Sends a signal and returns the exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        let mut status = None;
        howdah_lab::wait_until("the server ends", REPLY_TIMEOUT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has already ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report_page(title: &str) -> String {
    let page = Page {
        title: title.to_owned(),
        verdict: RehearsalVerdict::Failed,
        headline: "1 of 2 queries slower".to_owned(),
        reasons: Vec::new(),
        notes: Vec::new(),
        confidence: 0.95,
        change_min: 1.1,
        runs: Vec::new(),
        queries: Vec::new(),
        time_lines: TimeLines::default(),
        fidelity: Vec::new(),
        recovery: Vec::new(),
        servers: Vec::new(),
        differences: Vec::new(),
        options: Vec::new(),
        howdah: "0.1.0".to_owned(),
        started: "2026-11-20 12:43:19 UTC".to_owned(),
        finished: "2026-11-20 12:57:02 UTC".to_owned(),
    };
    page.to_html()
}

/// Writes the files of a rehearsal.
fn write_rehearsal(folder: &Path, verdict: &str, day: u32) {
    fs::create_dir_all(folder).unwrap();
    let report = format!(
        r#"{{"format": "howdah-rehearsal-report", "version": 1, "verdict": "{verdict}",
            "summary": "{verdict}: in short", "started": "2026-11-{day}T12:00:00.000000Z",
            "servers": {{"base": {{"database": "shop", "version": "16.4"}},
                         "change": {{"database": "shop", "version": "17.2"}}}},
            "queries": [{{"verdict": "slower"}}]}}"#
    );
    fs::write(folder.join("report.json"), report).unwrap();
    fs::write(folder.join("report.html"), report_page("Rehearsal of shop")).unwrap();
    fs::write(folder.join("report.md"), "# Rehearsal of shop\n").unwrap();
    fs::write(folder.join("rehearsal.json"), "{}").unwrap();
    fs::write(folder.join("reset.log"), "secret").unwrap();
}

/// Three rehearsals, and things that are none.
fn sample() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_rehearsal(&folder.path().join("first"), "passed", 20);
    write_rehearsal(&folder.path().join("team a/<b>"), "failed", 22);
    write_rehearsal(&folder.path().join("third"), "not comparable", 21);
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("other/report.html"), "not a rehearsal").unwrap();
    folder
}

#[test]
fn index_lists_rehearsals_and_links_to_reports() {
    let folder = sample();
    let server = Server::start(folder.path(), &[]);
    let index = get(server.address, "/");
    assert_eq!(index.status, 200, "{index:?}");
    let positions = ["failed</span>", "not comparable</span>", "passed</span>"]
        .map(|text| index.body.find(text).unwrap_or_else(|| panic!("{text}: {index:?}")));
    assert!(positions.is_sorted(), "newest first: {positions:?}");
    assert!(!index.body.contains("other"), "{index:?}");
    let link = "rehearsals/team%20a/%3Cb%3E/report.html";
    assert!(index.body.contains(link), "{index:?}");

    let report = get(server.address, &format!("/{link}"));
    assert_eq!(
        (report.status, report.header("content-type").unwrap()),
        (200, "text/html; charset=utf-8")
    );
    assert!(report.body.contains("Rehearsal of shop"), "{}", report.headers);
    let policy = report.header("content-security-policy").unwrap();
    assert!(
        policy.contains("script-src 'sha256-") && policy.contains("sandbox allow-scripts"),
        "{policy}"
    );
    for reply in [&index, &report, &get(server.address, "/nothing")] {
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
            ("connection", "close"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{reply:?}");
        }
    }
    let download = get(server.address, "/rehearsals/first/report.json");
    assert_eq!(
        download.header("content-disposition"),
        Some("attachment; filename=\"first-report.json\"")
    );
    let head = format!("HEAD /{link} HTTP/1.1\r\nHost: localhost:{}", server.address.port());
    let head = request(server.address, &head);
    assert_eq!((head.status, head.body.as_str()), (200, ""), "{head:?}");
}

#[test]
fn requests_from_elsewhere_and_other_methods_are_refused() {
    let folder = sample();
    let server = Server::start(folder.path(), &[]);
    for path in ["/", "/rehearsals/first/report.json"] {
        assert_eq!(get(server.address, path).status, 200, "{path}");
        assert_refusals(server.address, path);
    }
    assert_eq!(get(server.address, "/").status, 200, "it still serves");
}

#[test]
fn files_outside_of_reports_are_not_served() {
    let folder = sample();
    let outside = tempfile::tempdir().unwrap();
    write_rehearsal(outside.path(), "passed", 1);
    symlink(outside.path(), folder.path().join("linked")).unwrap();
    symlink("/etc/passwd", folder.path().join("first/report.txt")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let outside = outside.path().display().to_string();
    let encoded = outside.replace('/', "%2F");
    let up = "../".repeat(12);
    for path in [
        "/rehearsals/first/rehearsal.json",
        "/rehearsals/first/reset.log",
        "/rehearsals/first/",
        "/rehearsals/first",
        "/rehearsals/other/report.html",
        "/rehearsals/linked/report.html",
        "/rehearsals/first/report.txt",
        "/rehearsals/first/../first/report.html",
        "/rehearsals/%2e%2e/%2e%2e/report.html",
        "/rehearsals/first/%2E%2E/third/report.html",
        "/rehearsals/..%2f..%2freport.html",
        "/rehearsals/first%00/report.html",
        "/rehearsals/%/report.html",
        "/first/report.html",
        "/report.html",
        "/rehearsals//etc/passwd",
        &format!("/rehearsals/{outside}/report.html"),
        &format!("/rehearsals/{encoded}/report.html"),
        &format!("/rehearsals/{up}{outside}/report.html"),
        &format!("/rehearsals/{}report.html", "a/".repeat(5_000)),
    ] {
        let reply = get(server.address, path);
        assert!([404, 500].contains(&reply.status), "{path}: {reply:?}");
        assert!(!reply.body.contains("Rehearsal of shop"), "{path}");
    }
}

#[test]
fn large_headers_and_slow_clients_do_not_stop_others() {
    let folder = sample();
    let server = Server::start(folder.path(), &[]);
    let large = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {}", server.address, "x".repeat(1 << 20));
    let reply = request(server.address, &large);
    assert!([0, 400, 431].contains(&reply.status), "{reply:?}");
    let many = "X: y\r\n".repeat(2_000);
    let reply =
        request(server.address, &format!("GET / HTTP/1.1\r\n{many}Host: {}", server.address));
    assert!([0, 400, 431].contains(&reply.status), "{reply:?}");

    let mut slow: Vec<TcpStream> = (0..10).map(|_| connect(server.address)).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nHos").unwrap();
    }
    assert_eq!(get(server.address, "/").status, 200);
    // Those that send nothing more are closed in the end.
    for stream in &mut slow {
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert!(!text(&reply).contains("200 OK"), "{}", text(&reply));
    }
}

#[test]
fn signals_end_it_at_once_with_code_0() {
    let folder = sample();
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(folder.path(), &[]);
        // A request in progress does not delay the end.
        let mut slow = connect(server.address);
        slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(server.end(signal), Some(0));
    }
}

#[test]
fn address_for_other_machines_needs_an_option() {
    let folder = sample();
    let refused =
        howdah(folder.path()).args(["report", "serve", ".", "--listen", "0.0.0.0:0"]).assert();
    let refused = refused.code(1);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("0.0.0.0:0 is not a loopback address"), "{message}");
    assert!(message.contains("--allow-remote"), "{message}");

    let args = ["--listen", "0.0.0.0:0", "--allow-remote", "--host-name", "reports.example"];
    let server = Server::start(folder.path(), &args);
    let address = SocketAddr::from(([127, 0, 0, 1], server.address.port()));
    for (host, status) in [("reports.example", 200), ("127.0.0.1", 200), ("evil.example", 403)] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}:{}", address.port());
        assert_eq!(request(address, &head).status, status, "{host}");
    }
    let missing = howdah(folder.path()).args(["report", "serve", "missing"]).assert().code(1);
    let message = text(&missing.get_output().stderr);
    assert!(message.contains("cannot open the folder missing"), "{message}");
}

#[test]
fn pages_work_in_a_browser() {
    let folder = sample();
    let server = Server::start(folder.path(), &[]);
    let origin = format!("http://{}/", server.address);
    let mut browser = Browser::start("report-serve");
    browser.resize(1280, 900);
    browser.open_url(&origin);
    let is_own = |url: &str| url.starts_with(&origin);
    assert_eq!(browser.problems_except(is_own), [""; 0]);
    assert_eq!(browser.eval("document.querySelectorAll('tbody tr').length"), 3);
    let colors = "Array.from(document.querySelectorAll('.badge'), (badge) => \
                  getComputedStyle(badge).color)";
    let colors = browser.eval(colors);
    assert!(colors[0] != colors[1] && colors[1] != colors[2], "{colors}");
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rehearsal-page");
    fs::create_dir_all(&pictures).unwrap();
    browser.screenshot(&pictures.join("index.png"), true);
    browser.resize(390, 844);
    assert_eq!(browser.eval("document.documentElement.scrollWidth"), 390);
    browser.screenshot(&pictures.join("index-narrow.png"), true);
    browser.resize(1280, 900);

    browser.click("tbody tr:nth-child(1) th a");
    let is_open =
        "location.pathname.endsWith('report.html') && 'ready' in document.documentElement.dataset";
    howdah_lab::wait_until("the report is open", REPLY_TIMEOUT, || browser.is_true(is_open));
    assert_eq!(browser.problems_except(is_own), [""; 0]);
    // The report is isolated: its scripts cannot read other reports.
    let stolen = browser.eval(
        "fetch('/rehearsals/first/report.json').then((reply) => reply.status, () => 'refused')",
    );
    assert_eq!(stolen, "refused");
}
