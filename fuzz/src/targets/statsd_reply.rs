//! HTTP replies to the statsd server's posts, with arbitrary bytes.

use howdah_http::client::read_reply;

use super::Shape;

/// Fragments of replies.
pub const WORDS: &[&[u8]] = &[
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 400 Bad Request\r\n",
    b"HTTP/1.1 999 ?\r\n",
    b"Content-Length: 2\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"\r\n",
    b"ok",
    b"\x1b[2J",
];

/// Checks that the body is part of the reply unless chunked, and that an error is one short line.
pub fn run(input: &[u8]) -> Shape {
    match read_reply(input) {
        Ok(body) => {
            assert!(body.len() <= input.len(), "{} bytes", body.len());
            let head = String::from_utf8_lossy(input).to_ascii_lowercase();
            assert!(
                head.contains("chunked")
                    || body.is_empty()
                    || input.windows(body.len()).any(|part| part == body),
                "a body is part of the reply"
            );
            Shape::of((true, body.is_empty()))
        }
        Err(error) => {
            let reason = error.to_string();
            assert!(
                reason.chars().count() < 1000 && !reason.contains(char::is_control),
                "{reason:?}"
            );
            Shape::of((false, reason.len() > 30))
        }
    }
}
