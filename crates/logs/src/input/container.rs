//! Lines with a time in front: of containers (CRI), of `--timestamps`, of exports from CloudWatch.

use super::{
    layer::{Found, Layer},
    lines::{Line, Lines},
};
use crate::summary::Reason;

/// `2026-11-20T12:43:19.577123456Z stderr F text`: what a container runtime for Kubernetes writes.
///
/// `P` in place of `F` marks a part of a line, which goes on in the next entry of its stream.
/// Source: Kubernetes, CRI logging, `kubelet-cri-logging.md`.
#[derive(Debug)]
pub(super) struct Cri {
    lines: Lines,
    /// Parts of lines that are not whole: of standard output and standard error.
    parts: [Vec<u8>; 2],
    bytes_max: usize,
}

impl Cri {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { lines: Lines::new(bytes_max), parts: Default::default(), bytes_max }
    }
}

/// Splits a line into its stream (0 for standard output, 1 for standard error), whether it is only
/// a part, and the text.
pub(super) fn split_cri(line: &[u8]) -> Option<(usize, bool, &[u8])> {
    let rest = line[iso_len(line)?..].strip_prefix(b" std")?;
    let (stream, rest) = match rest.strip_prefix(b"out ") {
        Some(rest) => (0, rest),
        None => (1, rest.strip_prefix(b"err ")?),
    };
    let is_part = match rest.first()? {
        b'F' => false,
        b'P' => true,
        _ => return None,
    };
    // Further tags may follow the first, after colons.
    let tags = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let is_tag = tags == 1 || rest[1] == b':';
    is_tag.then(|| (stream, is_part, rest.get(tags + 1..).unwrap_or_default()))
}

impl Layer for Cri {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        let Self { lines, parts, bytes_max } = self;
        lines.feed(bytes, |line, number| take_cri(line, number, parts, *bytes_max, found));
    }

    fn finish(&mut self, found: &mut Found) {
        let Self { lines, parts, bytes_max } = self;
        lines.finish(|line, number| take_cri(line, number, parts, *bytes_max, found));
        for part in parts.iter_mut() {
            found.inside.append(part);
        }
    }
}

fn take_cri(
    line: Line<'_>,
    number: u64,
    parts: &mut [Vec<u8>; 2],
    bytes_max: usize,
    found: &mut Found,
) {
    let line = match line {
        Line::Whole([]) => return,
        Line::Whole(line) => line,
        Line::TooLong(line) => return found.problem(Reason::TooLong, number, line),
    };
    let Some((stream, is_part, text)) = split_cri(line) else {
        return found.problem(Reason::BadWrapping, number, line);
    };
    let part = &mut parts[stream];
    if part.len() + text.len() > bytes_max {
        *part = Vec::new();
        return found.problem(Reason::TooLong, number, line);
    }
    if is_part {
        part.extend_from_slice(text);
        return;
    }
    found.inside.append(part);
    found.inside.extend_from_slice(text);
    found.inside.push(b'\n');
}

/// `2026-11-20T12:43:19.577Z text`: `kubectl logs --timestamps`, `docker logs -t`, a CloudWatch
/// export to S3. A line without a time goes on with the one before, and stays as it is.
#[derive(Debug)]
pub(super) struct Stamped {
    lines: Lines,
}

impl Stamped {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { lines: Lines::new(bytes_max) }
    }
}

/// The text behind the time.
pub(super) fn split_stamped(line: &[u8]) -> Option<&[u8]> {
    line[iso_len(line)?..].strip_prefix(b" ")
}

impl Layer for Stamped {
    fn feed(&mut self, bytes: &[u8], found: &mut Found) {
        self.lines.feed(bytes, |line, number| take_stamped(line, number, found));
    }

    fn finish(&mut self, found: &mut Found) {
        self.lines.finish(|line, number| take_stamped(line, number, found));
    }
}

fn take_stamped(line: Line<'_>, number: u64, found: &mut Found) {
    match line {
        Line::TooLong(line) => found.problem(Reason::TooLong, number, line),
        Line::Whole(line) => {
            found.inside.extend_from_slice(split_stamped(line).unwrap_or(line));
            found.inside.push(b'\n');
        }
    }
}

/// Length of the ISO 8601 time at the front, zone included where there is one.
fn iso_len(line: &[u8]) -> Option<usize> {
    let civil = line.get(..19)?;
    let is_civil = civil.iter().zip(b"dddd-dd-ddTdd:dd:dd").all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    });
    let is_part = |byte: &&u8| byte.is_ascii_digit() || b".,+-:Z".contains(byte);
    is_civil.then(|| 19 + line[19..].iter().take_while(is_part).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrap(mut layer: impl Layer, text: &str) -> (String, Vec<Reason>) {
        let mut found = Found::default();
        layer.feed(text.as_bytes(), &mut found);
        layer.finish(&mut found);
        let reasons = found.problems.iter().map(|met| met.reason).collect();
        (String::from_utf8_lossy(&found.inside).into_owned(), reasons)
    }

    #[test]
    fn parts_of_lines_are_joined_by_stream() {
        let text = "2026-11-20T12:43:19.577123456Z stderr P LOG:  one \n\
                    2026-11-20T12:43:19.577123457Z stdout F other\n\
                    2026-11-20T12:43:19.577123458+01:00 stderr F line\n\
                    2026-11-20T12:43:19.577123459Z stderr F \tmore\n\
                    2026-11-20T12:43:19.577123459Z stderr F \n\
                    no wrapping\n";
        let (inside, reasons) = unwrap(Cri::new(1000), text);
        assert_eq!(inside, "other\nLOG:  one line\n\tmore\n\n");
        assert_eq!(reasons, [Reason::BadWrapping]);
        let (inside, reasons) = unwrap(Cri::new(60), text);
        assert_eq!((inside.as_str(), reasons.len()), ("other\nLOG:  one line\n\tmore\n\n", 1));
    }

    #[test]
    fn parts_without_end_are_bounded() {
        let text = "2026-11-20T12:43:19Z stderr P 0123456789\n".repeat(100);
        let (inside, reasons) = unwrap(Cri::new(50), &text);
        assert!(inside.len() <= 50 && reasons.contains(&Reason::TooLong));
    }

    #[test]
    fn times_are_taken_off() {
        let text = "2026-11-20T12:43:19.577Z a\n\tb\n2026-11-20T12:43:19 c";
        assert_eq!(unwrap(Stamped::new(1000), text).0, "a\n\tb\nc\n");
    }
}
