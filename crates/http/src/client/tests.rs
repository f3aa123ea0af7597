//! Requests to servers that misbehave.

use std::{
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::*;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns an endpoint on this machine, and a thread that serves one connection.
fn serve_one<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (HttpEndpoint, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/secret?token=secret", listener.local_addr().unwrap());
    let headers = vec![("Authorization", "Token secret".to_owned())];
    let endpoint = HttpEndpoint::new("test-agent", &url, None, headers).unwrap();
    (endpoint, thread::spawn(move || serve(listener.accept().unwrap().0)))
}

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.ends_with(end.as_bytes()) {
        let bytes = stream.read(&mut buffer).unwrap();
        assert_ne!(bytes, 0, "{}", String::from_utf8_lossy(&request));
        request.extend_from_slice(&buffer[..bytes]);
    }
    String::from_utf8(request).unwrap()
}

#[test]
fn request_has_expected_headers_only() {
    let (endpoint, server) = serve_one(|mut stream| {
        let request = read_until(&mut stream, "body");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        // The client does not wait for the end of the connection.
        (request, stream)
    });
    let extra = vec![("Idempotency-Key", "one".to_owned())];
    let reply = endpoint.post_with(&extra, b"body", Instant::now() + REQUEST_TIMEOUT).unwrap();
    assert_eq!(reply, b"ok");
    let (request, _stream) = server.join().unwrap();
    let (head, _) = request.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n");
    assert_eq!(lines.next(), Some("POST /secret?token=secret HTTP/1.1"));
    let host = format!("host: {}", endpoint.origin().strip_prefix("http://").unwrap());
    let mut headers: Vec<&str> = lines.collect();
    headers.sort_unstable();
    let expected = [
        "authorization: Token secret",
        "connection: close",
        "content-length: 4",
        &host,
        "idempotency-key: one",
        "user-agent: test-agent",
    ];
    assert_eq!(headers, expected);
}

#[test]
fn early_refusal_is_readable() {
    for refusal in ["413 Content Too Large", "400 Bad Request"] {
        let (endpoint, server) = serve_one(move |mut stream| {
            stream.read_exact(&mut [0; 1000]).unwrap();
            let reply = format!("HTTP/1.1 {refusal}\r\nContent-Length: 8\r\n\r\ntoo much");
            stream.write_all(reply.as_bytes()).unwrap();
        });
        let body = vec![b'x'; 64 << 20];
        let error = endpoint.post(&body, Instant::now() + REQUEST_TIMEOUT).unwrap_err();
        assert_eq!(error.to_string(), format!("HTTP status {}: too much", &refusal[..3]));
        assert!(error.is_refusal());
        server.join().unwrap();
    }
}

#[test]
fn connection_closed_during_request_is_an_error() {
    let (endpoint, server) = serve_one(drop);
    let body = vec![b'x'; 64 << 20];
    let error = endpoint.post(&body, Instant::now() + REQUEST_TIMEOUT).unwrap_err();
    assert!(matches!(error, PostError::Io(_)), "{error:?}");
    server.join().unwrap();
}

#[test]
fn silent_server_costs_no_more_than_the_deadline() {
    for body in [&b"body"[..], &vec![b'x'; 64 << 20]] {
        // This server neither reads nor replies.
        let (endpoint, server) = serve_one(|stream| stream);
        let start = Instant::now();
        let error = endpoint.post(body, start + Duration::from_millis(50)).unwrap_err();
        assert!(
            matches!(&error, PostError::Io(error) if error.kind() == io::ErrorKind::TimedOut),
            "{error:?}"
        );
        assert!(start.elapsed() < REQUEST_TIMEOUT);
        let error = endpoint.post(body, start).unwrap_err();
        assert_eq!(error.to_string(), "timed out", "the deadline has passed already");
        server.join().unwrap();
    }
}

#[test]
fn errors_hide_secrets() {
    let (endpoint, server) = serve_one(|mut stream| {
        read_until(&mut stream, "body");
        stream.write_all(b"what?").unwrap();
    });
    let deadline = || Instant::now() + REQUEST_TIMEOUT;
    let not_http = endpoint.post(b"body", deadline()).unwrap_err();
    assert_eq!(not_http.to_string(), "the response is not valid HTTP");
    server.join().unwrap();
    // The port is closed now.
    let refused = endpoint.post(b"body", deadline()).unwrap_err();
    assert!(matches!(&refused, PostError::Io(_)), "{refused:?}");
    let invalid = vec![("X-Key", "secret\n".to_owned())];
    let invalid = endpoint.post_with(&invalid, b"body", deadline()).unwrap_err();
    let unknown = HttpEndpoint::new("t", "http://u.invalid/secret?secret", None, Headers::new());
    let unknown = unknown.unwrap().post(b"body", deadline()).unwrap_err();
    for error in [not_http, refused, invalid, unknown] {
        let text = format!("{error} {error:?}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn environment_proxy_is_not_used() {
    const PROXIES: [&str; 3] = ["http_proxy", "HTTP_PROXY", "ALL_PROXY"];
    if PROXIES.iter().any(|name| std::env::var_os(name).is_none()) {
        // Runs this test again in an environment with proxies, at a port that nothing listens on.
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client::tests::environment_proxy_is_not_used"])
            .envs(PROXIES.map(|name| (name, "http://127.0.0.1:1")))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (endpoint, server) = serve_one(|mut stream| {
        read_until(&mut stream, "body");
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    });
    assert_eq!(endpoint.post(b"body", Instant::now() + REQUEST_TIMEOUT).unwrap(), b"");
    server.join().unwrap();
}

#[test]
fn body_of_a_get_is_limited() {
    let (endpoint, server) = serve_one(|mut stream| {
        let request = read_until(&mut stream, "\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // Until the client has read enough and closes.
        let is_open = |_: &u32| stream.write_all(&[b'x'; 4096]).is_ok();
        let blocks = (0..).take_while(is_open).count();
        (request, blocks)
    });
    let error = endpoint.get(100_000, Instant::now() + REQUEST_TIMEOUT).unwrap_err();
    assert!(error.to_string().contains("more than 100000 bytes"), "{error}");
    let (request, blocks) = server.join().unwrap();
    assert!(request.starts_with("GET /secret?token=secret HTTP/1.1\r\n"), "{request}");
    assert!(blocks > 24);
    // A reply that ends early is an error, too.
    let (endpoint, server) = serve_one(|mut stream| {
        read_until(&mut stream, "\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
    });
    let outcome = endpoint.get(100, Instant::now() + REQUEST_TIMEOUT);
    assert!(outcome.is_err(), "{outcome:?}");
    server.join().unwrap();
}
