//! Removes the headers of lines that begin with a time: logs of containers (CRI), output of
//! `--timestamps`, and exports from CloudWatch.

use super::{
    layer::{Layer, LayerOutput},
    lines::{LineSplitter, WrappedLine},
    stamp_shape::{SECONDS_LEN, is_civil_shaped},
};
use crate::problem::InputProblem;

/// A layer that removes the headers that Kubernetes container runtimes put in front of each line:
/// `2026-11-20T12:43:19.577123456Z stderr F text`.
///
/// `P` in place of `F` marks part of a line; the next entry of its stream contains the next part.
/// Source: Kubernetes, CRI logging, `kubelet-cri-logging.md`.
#[derive(Debug)]
pub(super) struct Cri {
    lines: LineSplitter,
    /// Partial lines of standard output and of standard error.
    parts: [Vec<u8>; 2],
    bytes_max: usize,
}

impl Cri {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { lines: LineSplitter::new(bytes_max), parts: Default::default(), bytes_max }
    }
}

/// Splits a line into the number of its stream (0 for standard output, 1 for standard error), a
/// flag that is true for a partial line, and the text.
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
    // Further tags may follow the first, separated by colons.
    let tags = memchr::memchr(b' ', rest).unwrap_or(rest.len());
    let is_tag = tags == 1 || rest[1] == b':';
    is_tag.then(|| (stream, is_part, rest.get(tags + 1..).unwrap_or_default()))
}

impl Layer for Cri {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        let Self { lines, parts, bytes_max } = self;
        lines.feed(bytes, |line, number| read_cri_line(line, number, parts, *bytes_max, output));
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        let Self { lines, parts, bytes_max } = self;
        lines.finish(|line, number| read_cri_line(line, number, parts, *bytes_max, output));
        for part in parts.iter_mut() {
            output.log.append(part);
        }
    }
}

fn read_cri_line(
    line: WrappedLine<'_>,
    number: u64,
    parts: &mut [Vec<u8>; 2],
    bytes_max: usize,
    output: &mut LayerOutput,
) {
    let line = match line {
        WrappedLine::Whole([]) => return,
        WrappedLine::Whole(line) => line,
        WrappedLine::TooLong(line) => {
            return output.add_problem(InputProblem::TooLong, number, line);
        }
    };
    let Some((stream, is_part, text)) = split_cri(line) else {
        return output.add_problem(InputProblem::BadEnvelope, number, line);
    };
    let part = &mut parts[stream];
    if part.len() + text.len() > bytes_max {
        *part = Vec::new();
        return output.add_problem(InputProblem::TooLong, number, line);
    }
    if is_part {
        part.extend_from_slice(text);
        return;
    }
    output.log.append(part);
    output.log.extend_from_slice(text);
    output.log.push(b'\n');
}

/// A layer that removes the time in front of each line, `2026-11-20T12:43:19.577Z text`, as written
/// by `kubectl logs --timestamps`, `docker logs -t`, and a CloudWatch export to S3. A line without
/// a time belongs to the previous entry and is passed through.
#[derive(Debug)]
pub(super) struct TimestampedLines {
    lines: LineSplitter,
}

impl TimestampedLines {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { lines: LineSplitter::new(bytes_max) }
    }
}

/// Returns the text after the time; `None` if the line does not begin with a time.
pub(super) fn split_timestamp(line: &[u8]) -> Option<&[u8]> {
    line[iso_len(line)?..].strip_prefix(b" ")
}

impl Layer for TimestampedLines {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        self.lines.feed(bytes, |line, number| read_timestamped_line(line, number, output));
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        self.lines.finish(|line, number| read_timestamped_line(line, number, output));
    }
}

fn read_timestamped_line(line: WrappedLine<'_>, number: u64, output: &mut LayerOutput) {
    match line {
        WrappedLine::TooLong(line) => output.add_problem(InputProblem::TooLong, number, line),
        WrappedLine::Whole(line) => {
            output.log.extend_from_slice(split_timestamp(line).unwrap_or(line));
            output.log.push(b'\n');
        }
    }
}

/// Returns the length of the ISO 8601 time at the front, including its zone if there is one.
fn iso_len(line: &[u8]) -> Option<usize> {
    let is_part = |byte: &&u8| byte.is_ascii_digit() || b".,+-:Z".contains(byte);
    is_civil_shaped(line, b'T')
        .then(|| SECONDS_LEN + line[SECONDS_LEN..].iter().take_while(is_part).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrap(mut layer: impl Layer, text: &str) -> (String, Vec<InputProblem>) {
        let mut output = LayerOutput::default();
        layer.feed(text.as_bytes(), &mut output);
        layer.finish(&mut output);
        let reasons = output.problems.iter().map(|problem| problem.reason).collect();
        (String::from_utf8_lossy(&output.log).into_owned(), reasons)
    }

    #[test]
    fn partial_lines_are_joined_by_stream() {
        let text = "2026-11-20T12:43:19.577123456Z stderr P LOG:  one \n\
                    2026-11-20T12:43:19.577123457Z stdout F other\n\
                    2026-11-20T12:43:19.577123458+01:00 stderr F line\n\
                    2026-11-20T12:43:19.577123459Z stderr F \tmore\n\
                    2026-11-20T12:43:19.577123459Z stderr F \n\
                    no wrapping\n";
        let (log, reasons) = unwrap(Cri::new(1000), text);
        assert_eq!(log, "other\nLOG:  one line\n\tmore\n\n");
        assert_eq!(reasons, [InputProblem::BadEnvelope]);
        let (log, reasons) = unwrap(Cri::new(60), text);
        assert_eq!((log.as_str(), reasons.len()), ("other\nLOG:  one line\n\tmore\n\n", 1));
    }

    #[test]
    fn endless_partial_line_is_bounded() {
        let text = "2026-11-20T12:43:19Z stderr P 0123456789\n".repeat(100);
        let (log, reasons) = unwrap(Cri::new(50), &text);
        assert!(log.len() <= 50 && reasons.contains(&InputProblem::TooLong));
    }

    #[test]
    fn timestamps_are_removed() {
        let text = "2026-11-20T12:43:19.577Z a\n\tb\n2026-11-20T12:43:19 c";
        assert_eq!(unwrap(TimestampedLines::new(1000), text).0, "a\n\tb\nc\n");
    }
}
